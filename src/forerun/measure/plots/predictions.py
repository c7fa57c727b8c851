"""Predicted against measured speed-up: can the plan be trusted?"""

from __future__ import annotations

from typing import Any

from forerun.base.drawing import GREY, canvas, points, ticker
from forerun.measure.naming import cell_words, series_of
from forerun.measure.plots.plot import WIDTH, Plot, label_ends, look
from forerun.measure.results import Results
from forerun.measure.summary import CLOSE, is_close

READING = (
    "One mark per drafter, K, batch and temperature: what the probe expected before the run, and "
    "what came of it, with 95% intervals. On the line both agree; in the band they differ by less "
    "than 15%."
)


def predictions(results: Results) -> Plot | None:
    """Draw predicted against measured figures, one mark per cell; None where there are no
    predictions."""
    pairs = results.predicted
    if not pairs:
        return None
    close = sum(is_close(*pair) for pair in pairs)
    title = f"{close} of {len(pairs)} predictions ({close / len(pairs):.0%}) within 15%"
    with canvas(WIDTH, 4.6) as figure:
        plot = Plot("predictions", None, title, READING, figure)
        axes = figure.subplots()
        highest: dict[str, tuple[float, float, str]] = {}
        ends = [1.0]
        for prediction, measured in pairs:
            assert measured.speedup is not None
            series, x, y = series_of(prediction.cell), prediction.speedup, measured.speedup
            style = {**look(results, series), "linestyle": "none", "alpha": 0.75}
            thin = {"color": style["color"], "linewidth": points(0.8), "alpha": 0.35}
            axes.plot([x.low, x.high], [y.mean, y.mean], **thin)
            axes.plot([x.mean, x.mean], [y.low, y.high], **thin)
            (mark,) = axes.plot([x.mean], [y.mean], **style)
            words = f"predicted {x.mean:.2f}×, measured {y.mean:.2f}×"
            plot.tip(mark, f"{cell_words(prediction.cell)}: {words}")
            ends += [x.mean, y.mean]
            if series.label not in highest or highest[series.label][1] < x.mean:
                highest[series.label] = (y.mean, x.mean, style["color"])
        _diagonal(axes, 0.9 * min(ends), 1.08 * max(ends))
        label_ends(axes, [(y, name, colour) for name, (y, _, colour) in highest.items()])
    return plot


def _diagonal(axes: Any, low: float, high: float) -> None:
    ends = [low, high]
    axes.plot(ends, ends, color=GREY, linewidth=points(1.2), zorder=1)
    axes.fill_between(
        ends,
        [end / (1 + CLOSE) for end in ends],
        [end / (1 - CLOSE) for end in ends],
        color=GREY,
        alpha=0.13,
        linewidth=0,
    )
    for line in (axes.axhline, axes.axvline):
        line(1, color=GREY, linewidth=points(0.8), linestyle=":")
    axes.set(xlim=ends, ylim=ends, xlabel="predicted speed-up", ylabel="measured speed-up")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}×"))
