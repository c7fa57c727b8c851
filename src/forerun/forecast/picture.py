"""Draws a scan: the best draft length, and the batch sizes up to which drafting pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.base.drawing import BLUE, GREY, VERMILION, canvas, save, ticker
from forerun.forecast.simulator import Scan


def save_picture(scan: Scan, path: Path, *, in_seconds: bool) -> None:
    """Draw a scan into a file; the suffix of `path` chooses SVG or PNG.

    in_seconds: costs are in seconds, not relative.
    """
    has_batches = in_seconds and len(scan.batches) > 1
    with canvas(12 if has_batches else 6.6, 5.4) as figure:
        grid = figure.add_gridspec(2, 1 + has_batches)
        _by_draft_length(figure.add_subplot(grid[:, 0]), scan)
        if has_batches:
            top = figure.add_subplot(grid[0, 1])
            _by_batch(top, figure.add_subplot(grid[1, 1], sharex=top), scan)
        figure.align_ylabels()
    save(figure, path)


def _by_draft_length(axes: Any, scan: Scan) -> None:
    """Draw tokens per round and speed-up by K; their distance is the cost of drafting."""
    batch, lengths = scan.batches[0], scan.draft_lengths
    best = scan.best(batch)
    for name, label, colour, marker in (
        ("tokens_per_round", "tokens per round", BLUE, "o"),
        ("speedup", "speed-up", VERMILION, "s"),
    ):
        curve = [getattr(run, name) for run in scan.by_batch[batch]]
        axes.plot(lengths, [e.mean for e in curve], color=colour, marker=marker, label=label)
        low, high = [e.low for e in curve], [e.high for e in curve]
        axes.fill_between(lengths, low, high, color=colour, alpha=0.3, linewidth=0)
    peak = (best.draft_length, best.speedup.mean)
    axes.plot(*peak, "D", color=VERMILION, markersize=11)
    slowest = min(run.speedup.low for run in scan.by_batch[batch])
    floor = min(0.7, slowest - 0.2)  # room for the words under the lowest point
    axes.set_ylim(bottom=floor)
    axes.axhspan(floor, 1, color=GREY, alpha=0.13, linewidth=0)
    axes.annotate(
        "slower than plain decoding",
        (0.5, 0),
        (0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
    )
    axes.legend(loc="upper left", frameon=False)
    drafting = f"draft {best.draft_length} for {best.speedup.mean:.2f}×"
    axes.set_title(f"Batch {batch}: {drafting if best.draft_length else 'do not speculate'}")
    axes.set_xlabel("draft length K (bands: 95% intervals)")
    axes.set_ylabel("plain decoding = 1")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def _by_batch(top: Any, bottom: Any, scan: Scan) -> None:
    """Draw throughput and latency of the best K and of plain decoding by batch; K is written where
    it changes."""
    best = [scan.best(batch) for batch in scan.batches]
    plain = [scan.by_batch[batch][0] for batch in scan.batches]
    for axes, name, scale in ((top, "throughput", 1.0), (bottom, "latency", 1e3)):
        for runs, label, colour, dash, marker in (
            (best, "best K, as labelled", VERMILION, "-", "s"),
            (plain, "plain decoding", GREY, "--", "o"),
        ):
            means = [getattr(run, name).mean * scale for run in runs]
            axes.plot(scan.batches, means, dash, color=colour, marker=marker, label=label)
        axes.set(xscale="log", yscale="log")
        axes.margins(y=0.15)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:,g}"))
        axes.minorticks_off()
    for run, before in zip(best, [None, *best], strict=False):
        if before is None or run.draft_length != before.draft_length:
            top.annotate(
                str(run.draft_length),
                (run.batch, run.throughput.mean),
                (0, 8),
                textcoords="offset points",
                ha="center",
                color=VERMILION,
                fontweight="bold",
            )
    top.tick_params(labelbottom=False)
    top.legend(loc="lower right", frameon=False)
    top.set_title("As the batch grows")
    top.set_ylabel("tokens per second")
    bottom.set_ylabel("ms per token")
    bottom.set_xlabel("batch")
    shown = list(scan.batches[:1])
    for batch in scan.batches:
        if batch > 1.4 * shown[-1]:  # labels closer than that would touch
            shown.append(batch)
    bottom.set_xticks(shown, [str(batch) for batch in shown])
