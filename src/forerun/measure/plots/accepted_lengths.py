"""How much of a draft survives a round, as shares of rounds."""

from __future__ import annotations

from typing import Any

from forerun.base.drawing import canvas, points, ticker
from forerun.measure.figures import Figures
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.plots.plot import WIDTH, Plot, look
from forerun.measure.results import Results, shares_in_words

READING = (
    "Rounds by how many drafted tokens they kept, for the longest fixed K of each drafter; a "
    "round without any guess keeps nothing. Each round also gives one token of the target's own, "
    "which is not counted here."
)


def accepted_lengths(results: Results, setting: Setting) -> Plot | None:
    """Draw the shares of rounds by accepted length, for each drafter; None where there is nothing
    to draw."""
    rows = results.longest(setting)
    if not rows:
        return None
    empty = {series_of(figures.cell).label: figures.accepted_length_shares[0] for figures in rows}
    title = f"Rounds that keep nothing: {shares_in_words(empty)}"
    with canvas(WIDTH, 0.7 + 0.9 * len(rows)) as figure:
        plot = Plot("accepted_lengths", setting, title, READING, figure)
        all_axes = figure.subplots(len(rows), sharex=True, squeeze=False)[:, 0]
        tallest = max(max(figures.accepted_length_shares) for figures in rows)
        for axes, figures in zip(all_axes, rows, strict=True):
            _histogram(plot, axes, figures, look(results, series_of(figures.cell))["color"])
            axes.set_ylim(0, 1.2 * tallest)
        all_axes[-1].set_xlabel("drafted tokens kept in a round")
        all_axes[-1].xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    return plot


def _histogram(plot: Plot, axes: Any, figures: Figures, colour: str) -> None:
    label = f"{series_of(figures.cell).label}, {length_words(figures.cell)}"
    shares = figures.accepted_length_shares
    bars = axes.bar(range(len(shares)), shares, width=0.8, color=colour, alpha=0.9)
    for length, (bar, share) in enumerate(zip(bars, shares, strict=True)):
        plot.tip(bar, f"{label}: {share:.1%} of rounds keep {length}")
        if share >= 0.005:
            axes.annotate(
                f"{share:.0%}",
                (length, share),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=points(9),
            )
    corner = {"xycoords": "axes fraction", "ha": "right"}
    axes.annotate(
        label, (1, 0.82), **corner, color=colour, fontweight="bold", fontsize=points(10.5)
    )
    mean = f"{figures.tokens_per_round.mean:.2f} tokens per round"
    axes.annotate(mean, (1, 0.55), **corner, fontsize=points(9.5))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
