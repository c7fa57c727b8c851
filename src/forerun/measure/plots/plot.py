"""A plot, and the shared style: line looks, labels at line ends, tooltips."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.base.drawing import GREY, Figure, palette, points
from forerun.measure.naming import Series, Setting
from forerun.measure.records import Interval
from forerun.measure.results import Results

WIDTH = 5.4  # inches: two side by side fill a page, one fills a phone
MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclass
class Plot:
    """A drawn figure with its texts; `setting` is None if it covers several settings."""

    kind: str
    setting: Setting | None
    title: str  # the finding
    reading: str  # how to read it
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)  # id of a mark -> words on hovering

    @property
    def name(self) -> str:
        """The file name without suffix."""
        return self.kind + (f"-{self.setting.name}" if self.setting else "")

    def tip(self, artist: Any, words: str) -> None:
        """Attach a tooltip to a drawn artist."""
        name = f"mark-{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = words


def look(results: Results, series: Series) -> dict[str, Any]:
    """The style of a line: its colour tells the drafter, its marker the variant; a peer is dashed
    and hollow."""
    if series.drafter is None:
        colour, number = GREY, 0
    else:
        number = [name for name in results.drafters if name is not None].index(series.drafter)
        colour = palette()[number % len(palette())]
    variants = [
        other
        for other in results.series()
        if (other.drafter, other.peer) == (series.drafter, series.peer)
    ]
    variant = variants.index(series) if series in variants else 0
    style = {"color": colour, "marker": MARKERS[(number + 3 * variant) % len(MARKERS)]}
    if series.peer is not None:
        return {**style, "linestyle": "--", "markerfacecolor": "none"}
    return {**style, "linestyle": ":" if variant else "-"}


def whisker(axes: Any, x: float, interval: Interval, colour: str) -> None:
    """Draw a 95% interval as a thin upright line."""
    axes.plot([x, x], [interval.low, interval.high], color=colour, linewidth=points(1.4), alpha=0.7)


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names at the right of the axes, at the heights (y, name, colour) of their lines' ends.

    Names that would overlap are moved apart by as little as possible; their order is kept.
    """
    axes.figure.draw_without_rendering()
    size = points(10.5)
    line = 1.4 * size * axes.figure.dpi / 72
    box = axes.get_window_extent()
    ordered = sorted(ends)
    heights = [float(axes.transData.transform((0, y))[1]) for y, _, _ in ordered]
    names = [textwrap.wrap(name, 15) for _, name, _ in ordered]
    heights = spread(heights, [line * len(name) for name in names], box.y0 - line / 2, box.y1)
    for height, name, (_, _, colour) in zip(heights, names, ordered, strict=True):
        axes.annotate(
            "\n".join(name),
            (1.02, (height - box.y0) / box.height),
            xycoords="axes fraction",
            color=colour,
            fontsize=size,
            fontweight="bold",
            linespacing=1.0,
            va="center",
            annotation_clip=False,
        )


def spread(
    middles: Sequence[float], sizes: Sequence[float], low: float, high: float
) -> list[float]:
    """Ascending centres of items, moved so that no items overlap, within bounds if they fit.

    Neighbours that touch become one block, which settles around its members' mean.
    """
    blocks: list[tuple[float, list[float]]] = []  # middle, sizes of the members
    for middle, size in zip(middles, sizes, strict=True):
        members = [size]
        while True:
            half = sum(members) / 2
            middle = max(low + half, min(middle, high - half))
            if not blocks or blocks[-1][0] + sum(blocks[-1][1]) / 2 <= middle - half:
                break
            before, others = blocks.pop()
            middle = (before * len(others) + middle * len(members)) / len(others + members)
            members = others + members
        blocks.append((middle, members))
    placed = []
    for middle, members in blocks:
        edge = middle - sum(members) / 2
        for size in members:
            placed.append(edge + size / 2)
            edge += size
    return placed
