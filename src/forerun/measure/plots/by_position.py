"""Acceptance by position in the draft: how fast acceptance falls along the draft."""

from __future__ import annotations

from typing import Any

from forerun.base.drawing import canvas, ticker
from forerun.measure.figures import Figures
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.plots.plot import WIDTH, Plot, label_ends, look
from forerun.measure.plots.results import Results, shares_in_words

READING = (
    "The share of drafts accepted at each position, of those that were reached: all before them "
    "had been accepted. From the longest fixed K of each drafter, as far as at least 30 rounds "
    "reached. A level line means that longer drafts keep paying; a falling one, that they do not."
)
ENOUGH = 30


def by_position(results: Results, setting: Setting) -> Plot | None:
    rows = results.longest(setting)
    if not rows:
        return None
    firsts = {series_of(figures.cell).label: figures.acceptance_by_position[0] for figures in rows}
    with canvas(WIDTH, 4.2) as figure:
        title = f"First guesses that hold: {shares_in_words(firsts)}"
        plot = Plot("by_position", setting, title, READING, figure)
        axes = figure.subplots()
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))
        longest = max(len(figures.acceptance_by_position) for figures in rows)
        axes.set_xlim(0.6, longest + 0.4)
        axes.set_xticks(range(1, longest + 1, 1 + longest // 13))
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("accepted, once reached")
        label_ends(axes, [_line(plot, axes, results, figures) for figures in rows])
    return plot


def _line(plot: Plot, axes: Any, results: Results, figures: Figures) -> tuple[float, str, str]:
    """Draw one drafter; returns the height of the line's end, its name and its colour."""
    series = series_of(figures.cell)
    style, reached = look(results, series), results.reached_by_position(figures.cell)
    shown = max(1, sum(count >= ENOUGH for count in reached))  # reached falls along the draft
    rates = figures.acceptance_by_position[:shown]
    axes.plot(range(1, shown + 1), rates, **{**style, "marker": None})
    for x, (rate, count) in enumerate(zip(rates, reached[:shown], strict=True), start=1):
        (mark,) = axes.plot([x], [rate], **style)
        words = f"position {x}: {rate:.0%} of {count:,} accepted"
        plot.tip(mark, f"{series.label}, {length_words(figures.cell)}, {words}")
    return rates[-1], series.label, style["color"]
