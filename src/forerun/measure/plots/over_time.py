"""Draft length over time: what `auto` chose, round by round, and what came of it."""

from __future__ import annotations

from typing import Any

from forerun.base.drawing import canvas, points, ticker
from forerun.measure.figures import Figures
from forerun.measure.naming import Setting, series_of
from forerun.measure.plots.plot import WIDTH, Plot, look
from forerun.measure.records import AnswerRecord
from forerun.measure.results import Results
from forerun.prompts import GROUPS

READING = (
    "One answer of each task group, round by round. Pale: how many tokens were drafted, chosen "
    "anew each round, 0 included. Full: how many of them were kept."
)


def over_time(results: Results, setting: Setting) -> Plot | None:
    """Draw the drafted and the kept tokens, round by round, of one answer of each task group with
    the best automatic drafter; None where there is none."""
    lines = [series for series in results.series(setting) if series.peer is None]
    cells = [cell for series in lines if (cell := results.auto(setting, series))]
    if not cells:
        return None
    best = max(cells, key=lambda figures: figures.tokens_per_second.mean)
    rows = [row for row in _one_of_each_group(results, best) if any(row.drafted_by_round)]
    if not rows:
        return None
    lengths = [length for answer in rows for length in answer.drafted_by_round]
    low, high = min(lengths), max(lengths)
    title = f"{series_of(best.cell).label} with auto K drafts {low} to {high} tokens"
    with canvas(WIDTH, 0.7 + 0.6 * len(rows), padding=0.03) as figure:
        plot = Plot("over_time", setting, title, READING, figure)
        all_axes = figure.subplots(len(rows), sharex=True, sharey=True, squeeze=False)[:, 0]
        colour = look(results, series_of(best.cell))["color"]
        for axes, answer in zip(all_axes, rows, strict=True):
            _strip(plot, axes, answer, colour)
        all_axes[0].set_ylim(0, high + 0.6)
        all_axes[0].set_xlim(left=0.3)
        all_axes[-1].set_xlabel("round")
        all_axes[-1].xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    return plot


def _one_of_each_group(results: Results, figures: Figures) -> list[AnswerRecord]:
    by_group: dict[str, AnswerRecord] = {}
    for run in results.records.runs:
        if run.cell == figures.cell:
            for answer in run.answers:
                by_group.setdefault(answer.group, answer)
    return [by_group[group] for group in results.groups if group in by_group]


def _strip(plot: Plot, axes: Any, answer: AnswerRecord, colour: str) -> None:
    drafted, accepted = answer.drafted_by_round, answer.accepted_by_round
    numbers = range(1, len(drafted) + 1)
    pale = axes.bar(numbers, drafted, 0.9, color=colour, alpha=0.28)
    full = axes.bar(numbers, accepted, 0.9, color=colour)
    for number, length, kept, *bars in zip(numbers, drafted, accepted, pale, full, strict=True):
        for bar in bars:
            plot.tip(bar, f"round {number}: {kept} of {length} kept")
    words = f"{answer.new_tokens} tokens in {answer.rounds} rounds"
    axes.set_ylabel(GROUPS.get(answer.group, answer.group), rotation=0, ha="right", va="center")
    axes.annotate(words, (1, 0.82), xycoords="axes fraction", ha="right", fontsize=points(9))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=2))
    axes.grid(visible=False, axis="x")
