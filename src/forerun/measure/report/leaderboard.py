"""Speed-up by task group, as Spec-Bench's leaderboard shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from forerun.measure.figures import Figures
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.plots.results import Results
from forerun.prompts import GROUPS


def leaderboard(results: Results, setting: Setting) -> str:
    """A heading and a table: plain decoding, and the best and the automatic K of each drafter."""
    rows = _rows(results, setting)
    groups = [group for group in GROUPS if group in results.groups]
    groups += [group for group in results.groups if group not in GROUPS]
    columns = [
        [_speedup(results.by_group(group).get(figures.cell)) for figures in rows]
        for group in groups
    ]
    columns.append([_speedup(figures) for figures in rows])
    names = [*(GROUPS.get(group, group) for group in groups), "overall"]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(_name(figures))}</th>'
        + "".join(_cell(column[i], column) for column in columns)
        + f"<td>{figures.tokens_per_round.mean:.2f}</td></tr>"
        for i, figures in enumerate(rows)
    )
    return (
        f"<h3>Speed-up by task group, {escape(setting.words)}; the best of each column in bold</h3>"
        f'<div class="scroll"><table><thead><tr><th scope="col">drafter</th>{head}'
        f'<th scope="col">tokens per round</th></tr></thead><tbody>{body}</tbody></table></div>'
    )


def _rows(results: Results, setting: Setting) -> list[Figures]:
    rows = [
        results.best(setting, series)
        for series in results.plain_series()
        if results.has(setting, series)
    ]
    for series in results.series(setting):
        pair = results.best_fixed(setting, series), results.auto(setting, series)
        rows += [figures for figures in pair if figures is not None]
    return rows


def _name(figures: Figures) -> str:
    series = series_of(figures.cell)
    return (
        series.label if series.drafter is None else f"{series.label}, {length_words(figures.cell)}"
    )


def _speedup(figures: Figures | None) -> float | None:
    return None if figures is None or figures.speedup is None else figures.speedup.mean


def _cell(value: float | None, column: Sequence[float | None]) -> str:
    """A table cell; the background is bluer for speed-ups above 1, redder below 1."""
    if value is None:
        return "<td>–</td>"
    top = max(other for other in column if other is not None)
    colour = "blue" if value >= 1 else "vermilion"
    strength = min(1.0, abs(value - 1) / max(0.25, abs(top - 1)))
    text = f"<b>{value:.2f}×</b>" if value == top else f"{value:.2f}×"
    return f'<td class="heat" style="--heat:var(--{colour});--strength:{strength:.2f}">{text}</td>'
