"""Latency against throughput as the batch grows: up to which batch speculation pays."""

from __future__ import annotations

from typing import Any

from forerun.base.drawing import canvas, points, ticker
from forerun.measure.figures import Figures
from forerun.measure.held_out import Answer
from forerun.measure.naming import Series, Setting, length_words, temperature_words
from forerun.measure.plots.plot import WIDTH, Plot, label_ends, look
from forerun.measure.results import Results

READING = (
    "Each line is one way to decode, its marks the batch sizes as written; of each drafter the "
    "fastest K at that batch. Up is more tokens per second for everyone, left is less waiting for "
    "each. A line above and left of plain decoding is better in both."
)


def by_batch(results: Results, temperature: float) -> Plot | None:
    """Draw total speed against the wait of each user, one line per drafter, one mark per batch
    size; None where there is nothing to draw."""
    settings = [setting for setting in results.settings if setting.temperature == temperature]
    lines: list[tuple[Series, list[Figures]]] = []
    for series in [*results.plain_series(), *results.series()]:
        line = [
            results.best(setting, series) for setting in settings if results.has(setting, series)
        ]
        line = [
            figures for figures in line if figures.tokens_per_second.mean > 0
        ]  # as the axes demand
        if len(line) > 1:
            lines.append((series, line))
    if not lines:
        return None
    with canvas(WIDTH, 4.6) as figure:
        setting = Setting(max(results.batches), temperature)
        plot = Plot("by_batch", None, _title(results, setting), READING, figure)
        plot.kind += f"-temperature-{temperature:g}"
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel("ms per token of one request")
        axes.set_ylabel("tokens per second of the batch")
        axes.margins(0.12)
        ends = [_line(plot, axes, series, line, look(results, series)) for series, line in lines]
        label_ends(axes, ends)
    return plot


def _title(results: Results, setting: Setting) -> str:
    gain = results.gain(setting)
    where = f"at batch {setting.batch}, {temperature_words(setting.temperature)}"
    if gain is None:
        return f"Latency and throughput up to batch {setting.batch}"
    if gain.answer is Answer.NO:
        return f"No gain left {where}: {gain.speedup.mean:.2f}× plain decoding"
    if gain.answer is Answer.NOT_CLEAR:
        return f"Not clear whether anything is gained {where}"
    return f"{gain.speedup.mean:.2f}× plain decoding still {where}"


def _line(
    plot: Plot, axes: Any, series: Series, line: list[Figures], style: dict[str, Any]
) -> tuple[float, str, str]:
    """Draw one series; returns the height of its last mark, its name and its colour."""
    xs = [1e3 * figures.seconds_per_token.mean for figures in line]
    ys = [figures.tokens_per_second.mean for figures in line]
    axes.plot(xs, ys, **{**style, "marker": None})
    for x, y, figures in zip(xs, ys, line, strict=True):
        (mark,) = axes.plot(
            [x], [y], **{**style, "marker": "o", "markersize": points(8 if series.peer else 15)}
        )
        words = f"{series.label}, batch {figures.cell.batch}, {length_words(figures.cell)}"
        plot.tip(mark, f"{words}: {y:.1f} tokens/s, {x:.3g} ms per token")
        axes.annotate(
            str(figures.cell.batch),
            (x, y),
            (8, -10) if series.peer else (0, 0),  # a hollow mark has a line running through it
            textcoords="offset points",
            ha="center",
            va="center",
            color=style["color"] if series.peer else "white",
            fontsize=points(9),
            fontweight="bold",
        )
    return ys[-1], series.label, style["color"]
