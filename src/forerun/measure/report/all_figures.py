"""Every figure as a number, for readers who want or copy tables, and one generation token by
token."""

from __future__ import annotations

from html import escape

from forerun.measure.figures import Figures
from forerun.measure.naming import length_words, series_of, temperature_words
from forerun.measure.records import Interval, Sample, Token
from forerun.measure.results import Results

FATES = {
    "accepted": "accepted from the draft",
    "correction": "correction of a wrong guess",
    "bonus": "bonus token of the target",
}


def generation(sample: Sample) -> str:
    """The HTML of one generation, token by token."""
    accepted = sum(token.fate == "accepted" for token in sample.tokens)
    cell = sample.cell
    how = f"{series_of(cell).label}, {length_words(cell)}, {temperature_words(cell.temperature)}"
    legend = "".join(
        f'<span class="token {fate}" style="--p:1">{escape(words)}</span>'
        for fate, words in FATES.items()
    )
    prompt = escape(sample.prompt_text)
    tokens = "".join(_token(number, token) for number, token in enumerate(sample.tokens, start=1))
    return (
        f'<p class="reading">{escape(how)}: {accepted} of {len(sample.tokens)} tokens came from '
        "the draft. The paler a token, the less probable it was under the target; rest "
        f'the pointer on it for the number.</p><p class="legend">{legend}</p>'
        f'<details class="prompt"><summary>The prompt</summary><p>{prompt}</p></details>'
        f'<p class="generation">{tokens}</p>'
    )


def _token(number: int, token: Token) -> str:
    """The HTML of a token; line breaks stay visible, because they are tokens like any other."""
    text = escape(token.text).replace("\n", '<span class="break">↵</span>\n')
    words = f"{number}: {FATES.get(token.fate, token.fate)}, probability {token.probability:.1%}"
    return (
        f'<span class="token {escape(token.fate)}" style="--p:{token.probability:.3f}" '
        f'title="{escape(words)}">{text}</span>'
    )


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
    """The HTML table of all figures of all cells."""
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
