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
from forerun.measure.plots.results import Results as Results
from forerun.measure.plots.time_split import time_split
from forerun.measure.plots.tokens import tokens as tokens

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


def save_plots(plots: Sequence[Plot], folder: Path) -> list[Path]:
    """Each plot as SVG and as PNG, with its title written into the picture."""
    paths = []
    for plot in plots:
        where = f"\n{plot.setting.words}" if plot.setting else ""
        with drawing.titled(plot.figure, plot.title + where):
            for suffix in (".svg", ".png"):
                paths.append(folder / (plot.name + suffix))
                drawing.save(plot.figure, paths[-1])
    return paths
