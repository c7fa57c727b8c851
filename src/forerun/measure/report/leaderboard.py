"""Speed-up by task group, as Spec-Bench's leaderboard shows it.

A value is coloured only where it is clear that it differs from 1.  The largest clear gain of a
column is bold.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from forerun.measure.figures import Figures, is_plain
from forerun.measure.held_out import FEWEST_PROMPTS, Answer, answer
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.results import Results
from forerun.prompts import GROUPS

READING = (
    "Blue: a clear gain over plain decoding. Red: a clear loss. Grey: not clear, because the 95% "
    f"interval contains 1 or there are fewer than {FEWEST_PROMPTS} prompts; rest the pointer on a "
    "value for its interval. Bold: the largest clear gain of its column. Rows with a fixed K show "
    "the fastest K on these same prompts, so expect a little less on others."
)


def leaderboard(results: Results, setting: Setting) -> str:
    """A heading and a table: plain decoding, and the fastest and automatic K of each drafter."""
    rows = _rows(results, setting)
    groups = [group for group in GROUPS if group in results.groups]
    groups += [group for group in results.groups if group not in GROUPS]
    columns = [[results.by_group(group).get(figures.cell) for figures in rows] for group in groups]
    columns.append(list(rows))
    names = [*(GROUPS.get(group, group) for group in groups), "overall"]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(_name(figures))}</th>'
        + "".join(_cell(column[i], column) for column in columns)
        + f"<td>{figures.tokens_per_round.mean:.2f}</td></tr>"
        for i, figures in enumerate(rows)
    )
    return (
        f"<h3>Speed-up by task group, {escape(setting.words)}</h3>"
        f'<div class="scroll"><table><thead><tr><th scope="col">drafter</th>{head}'
        f'<th scope="col">tokens per round</th></tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="reading">{READING}</p>'
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


def _cell(figures: Figures | None, column: Sequence[Figures | None]) -> str:
    """A table cell: blue for a clear gain, red for a clear loss, grey if neither is clear."""
    if figures is None or figures.speedup is None:
        return "<td>–</td>"
    value, kind = figures.speedup, answer(figures.speedup, figures.num_prompts)
    text = f"{value.mean:.2f}×"
    if figures.num_prompts == 1:
        words = "1 prompt, so there is no interval"
    else:
        words = f"{value.low:.2f} to {value.high:.2f} over {figures.num_prompts} prompts"
    if is_plain(figures.cell) and figures.cell.peer is None:
        return f"<td>{text}</td>"  # compared with itself
    if kind is Answer.NOT_CLEAR:
        return f'<td class="unclear" title="not clear: {words}">{text}</td>'
    gains = [
        entry.speedup.mean
        for entry in column
        if entry is not None
        and entry.speedup is not None
        and answer(entry.speedup, entry.num_prompts) is Answer.YES
    ]
    if value.mean == max(gains, default=None):
        text = f"<b>{text}</b>"
    colour = "blue" if kind is Answer.YES else "vermilion"
    strength = min(1.0, abs(value.mean - 1) / max(0.25, max(gains, default=1.0) - 1))
    style = f"--heat:var(--{colour});--strength:{strength:.2f}"
    return f'<td class="heat" style="{style}" title="{words}">{text}</td>'
