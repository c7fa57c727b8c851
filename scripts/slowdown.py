"""Draws docs/slowdown.svg: what `--slowdown` buys and costs, by `benchmarks/serve.py`.

    python scripts/slowdown.py

tests/test_results.py fails when the picture is not what the JSON file gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.base.drawing import BLUE, GREY, VERMILION, as_svg, canvas, ticker
from forerun.engine.pacing import SLOWDOWN
from forerun.measure.plots.plot import label_ends

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "x86-2-cores" / "slowdown.json"
PICTURE = ROOT / "docs" / "slowdown.svg"


def by_slowdown() -> Mapping[float, Any]:
    """The figures of each slowdown, of the run with eight clients; "on" has the usual one."""
    results = json.loads(RESULT.read_text(encoding="utf-8"))["results"]["8"]
    found = {
        float(name.removeprefix("slowdown ")): figures
        for name, figures in results.items()
        if name.startswith("slowdown ")
    }
    return dict(sorted({SLOWDOWN: results["on"], **found}.items()))


def picture() -> str:
    """First tokens, pauses and tokens per second over the slowdown, one above the other."""
    figures = by_slowdown()
    places = list(figures)
    lines = (
        ("first token, s", "first_token_ms", 1e-3, {"p50": "median", "p95": "p95"}),
        ("pauses in an answer, ms", "pause_ms", 1.0, {"p50": "median", "p95": "p95"}),
        ("tokens per second, of all", "tokens_per_second", 1.0, {"median": "tokens/s"}),
    )
    with canvas(5.4, 7.2) as figure:
        all_axes = figure.subplots(3, 1, sharex=True)
        for axes, (title, key, unit, shares) in zip(all_axes, lines, strict=True):
            ends = []
            for (share, word), colour in zip(shares.items(), (BLUE, VERMILION), strict=False):
                heights = [unit * one[key][share] for one in figures.values()]
                axes.plot(places, heights, color=colour, marker="o")
                ends.append((heights[-1], word, colour))
            axes.set_title(title, fontsize=11)
            axes.set_ylim(0, 1.15 * axes.dataLim.y1)
            axes.axvline(SLOWDOWN, color=GREY, linewidth=1, linestyle=":")
            axes.set_xscale("log")
            label_ends(axes, ends)
        all_axes[-1].set_xlabel(f"--slowdown (dotted: the default, {SLOWDOWN:g})")
        all_axes[-1].xaxis.set_major_locator(ticker.FixedLocator(places))
        all_axes[-1].xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        all_axes[-1].xaxis.set_minor_locator(ticker.NullLocator())
        return as_svg(figure)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
