"""The share of time that each stage takes: drafting, scoring, verifying, committing."""

from __future__ import annotations

import textwrap
from typing import Any

from forerun.base.drawing import BLUE, GREEN, ORANGE, PINK, canvas, points
from forerun.measure.figures import STAGES, Figures, is_plain
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.plots.plot import WIDTH, Plot
from forerun.measure.results import Results

COLOURS = dict(zip(STAGES, (ORANGE, BLUE, GREEN, PINK), strict=True))
READING = (
    "Shares of the wall clock of all rounds, those that read the prompt included, for plain "
    "decoding and the best cell of each drafter. At the right: time per token of one request."
)


def time_split(results: Results, setting: Setting) -> Plot | None:
    """Draw the shares of the time by stage, a bar per cell; None where no times are known."""
    cells = [results.best(setting, series) for series in results.series(setting)]
    plain = results.plain(setting)
    rows = [figures for figures in [*([plain] if plain else []), *cells] if figures.time_shares]
    if not rows:
        return None
    outside = max(1 - figures.time_shares["score"] for figures in rows)
    title = f"The target's own passes take {1 - outside:.0%} or more of the time"
    with canvas(WIDTH, 0.8 + 0.45 * len(rows)) as figure:
        plot = Plot("time_split", setting, title, READING, figure)
        axes = figure.subplots()
        for row, figures in enumerate(rows):
            left = 0.0
            for stage, share in figures.time_shares.items():
                (bar,) = axes.barh(row, share, 0.62, left, color=COLOURS[stage], alpha=0.9)
                plot.tip(bar, f"{_name(figures)}: {stage} {share:.1%}")
                if share >= 0.07:
                    axes.annotate(
                        f"{share:.0%}",
                        (left + share / 2, row),
                        ha="center",
                        va="center",
                        color="white",
                        fontweight="bold",
                        fontsize=points(10),
                    )
                left += share
            milliseconds = 1e3 * figures.seconds_per_token.mean
            axes.annotate(f"{milliseconds:.3g} ms", (1.02, row), va="center", fontsize=points(10))
        axes.set_yticks(range(len(rows)), [textwrap.fill(_name(figures), 19) for figures in rows])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.14)
        axes.set_xticks([])
        axes.grid(visible=False)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        _legend(axes)
    return plot


def _name(figures: Figures) -> str:
    label = series_of(figures.cell).label
    length = length_words(figures.cell).replace(" ", "\N{NO-BREAK SPACE}")
    return label if is_plain(figures.cell) else f"{label}, {length}"


def _legend(axes: Any) -> None:
    """Write the names of the stages in their colours above the bars, in the bars' order."""
    before: Any = None
    for stage in STAGES:
        before = axes.annotate(
            stage,
            (0, 1.02) if before is None else (1, 0),
            (0, 0) if before is None else (9, 0),
            xycoords="axes fraction" if before is None else before,
            textcoords="offset points",
            color=COLOURS[stage],
            fontweight="bold",
            fontsize=points(10.5),
            va="bottom",
        )
