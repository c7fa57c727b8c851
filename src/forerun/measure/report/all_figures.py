"""Every figure as a number: what the plots show, for those who read or copy tables."""

from __future__ import annotations

from html import escape

from forerun.measure.figures import Figures
from forerun.measure.naming import series_of
from forerun.measure.plots.results import Results
from forerun.measure.records import Interval

COLUMNS = (
    "drafter",
    "K",
    "batch",
    "temperature",
    "speed-up",
    "tokens per second",
    "with prompt",
    "ms per token",
    "tokens per round",
    "acceptance rate",
    "prompts × repeats",
)


def all_figures(results: Results) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in COLUMNS)
    body = "".join(map(_row, results.figures))
    return (
        "<p>All cells, with 95% intervals.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _row(figures: Figures) -> str:
    cell, with_prompt = figures.cell, figures.tokens_per_second_with_prompt
    values = (
        str(cell.draft_length),
        str(cell.batch),
        f"{cell.temperature:g}",
        "–" if figures.speedup is None else _interval(figures.speedup, 2, "×"),
        _interval(figures.tokens_per_second, 1),
        "–" if with_prompt is None else f"{with_prompt:.1f}",
        _interval(figures.seconds_per_token, 1, scale=1e3),
        _interval(figures.tokens_per_round, 2),
        _interval(figures.acceptance_rate, 0, "%", scale=100)
        if figures.acceptance_by_position
        else "–",
        f"{figures.num_prompts} × {figures.num_repeats}",
    )
    data = "".join(f"<td>{value}</td>" for value in values)
    return f'<tr><th scope="row">{escape(series_of(cell).label)}</th>{data}</tr>'


def _interval(value: Interval, digits: int, unit: str = "", *, scale: float = 1.0) -> str:
    mean, low, high = (f"{scale * x:.{digits}f}" for x in (value.mean, value.low, value.high))
    return f"{mean}{unit} <small>{low} to {high}</small>"
