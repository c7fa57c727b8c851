"""The plots of a sweep, one figure per file; `draw` gives all that its records allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from forerun.base import drawing
from forerun.measure.plots.accepted_lengths import accepted_lengths
from forerun.measure.plots.by_batch import by_batch
from forerun.measure.plots.by_draft_length import by_draft_length, by_position
from forerun.measure.plots.over_time import over_time
from forerun.measure.plots.plot import Plot as Plot
from forerun.measure.plots.predictions import predictions
from forerun.measure.plots.time_split import time_split
from forerun.measure.plots.tokens import tokens as tokens
from forerun.measure.results import Results

BY_SETTING = (by_draft_length, by_position, time_split, accepted_lengths, over_time)


def draw(results: Results) -> Iterator[Plot]:
    """Plots of each setting, then those that compare settings."""
    for setting in results.settings:
        for figure in BY_SETTING:
            if (plot := figure(results, setting)) is not None:
                yield plot
    for temperature in results.temperatures:
        if (plot := by_batch(results, temperature)) is not None:
            yield plot
    if (plot := predictions(results)) is not None:
        yield plot


def save_plots(
    plots: Sequence[Plot], folder: Path, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Each plot in these formats, with its title written into the picture."""
    paths = []
    for plot in plots:
        paths += [folder / f"{plot.name}.{kind}" for kind in formats]
        save_plot(plot, paths[-len(formats) :])
    return paths


def save_plot(plot: Plot, paths: Sequence[Path]) -> None:
    """A plot into files, with its title written into the picture."""
    where = f"\n{plot.setting.words}" if plot.setting else ""
    with drawing.titled(plot.figure, plot.title + where):
        for path in paths:
            drawing.save(plot.figure, path)
