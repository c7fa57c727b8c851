"""The style of Forerun's pictures, and the only import of matplotlib.

Colours are Okabe and Ito's, which people with any kind of colour vision can distinguish; the
background is transparent, and the text is a grey that can be read on white and on black.  Text
stays text in SVG, so that a page can give it its own font and colour.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from forerun.base.errors import MissingExtraError, explain

try:
    import matplotlib
    from matplotlib import ticker as ticker
    from matplotlib.figure import Figure as Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError as error:
    cure = 'Run: pip install "forerun[plot]"'
    raise MissingExtraError(explain("Drawing needs matplotlib.", "no such module", cure)) from error

BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, GREY = "#E69F00", "#56B4E9", "#767676"
PALETTES = {
    "okabe-ito": (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY),
    "tol": ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE"),
    "grey": ("#000000", "#7A7A7A", "#A6A6A6", "#3D3D3D", "#5C5C5C", "#C4C4C4"),
}
"""Colours by name: Okabe and Ito's, Tol's bright ones, and greys for print."""

FORMATS = ("svg", "png", "pdf")
TITLE_WIDTH = 5.4  # inches; in narrower pictures a title is smaller

STYLE = {
    "font.family": "sans-serif",
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.2,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # letters that can be searched and edited
    "svg.hashsalt": "forerun",  # the same figures give the same bytes
}
SIZES = {
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titlepad": 10,
    "lines.linewidth": 2.2,
    "lines.markersize": 5.5,
}
"""Settings of the style that are sizes in points. They shrink if a picture is drawn narrower than
its own width."""


@dataclass(frozen=True)
class Paper:
    """Settings of the pictures for one publication.

    width: in inches; None keeps each picture's own width.
    title: replaces each picture's title; "" removes it, None keeps it.
    palette: the name of the colours.
    """

    width: float | None = None
    height: float | None = None
    title: str | None = None
    palette: str = "okabe-ito"


USUAL = Paper()
_paper: ContextVar[Paper] = ContextVar("paper", default=USUAL)
_scale: ContextVar[float] = ContextVar("scale", default=1.0)


@contextmanager
def on(paper: Paper) -> Iterator[None]:
    """Use this paper for all pictures drawn within the context."""
    token = _paper.set(paper)
    try:
        yield
    finally:
        _paper.reset(token)


def palette() -> tuple[str, ...]:
    """The colours of lines, in their order."""
    return PALETTES[_paper.get().palette]


def points(size: float) -> float:
    """A size in points, scaled down if the paper is narrower than the picture's own width."""
    return size * _scale.get()


@contextmanager
def canvas(width: float, height: float, *, padding: float = 0.12) -> Iterator[Figure]:
    """Yield an empty figure; axes made within the context have our style.

    width, height: in inches, unless the paper sets a width. Letters and lines scale with it.
    padding: the space above and below each of the axes, in inches.
    """
    paper = _paper.get()
    scale = 1.0 if paper.width is None else paper.width / width
    token = _scale.set(scale)
    try:
        with matplotlib.rc_context(_style()):
            layout = ConstrainedLayoutEngine(w_pad=0.15 * scale, h_pad=padding * scale)
            size = width * scale, height * scale if paper.height is None else paper.height
            figure = Figure(figsize=size, layout=layout)
            figure.patch.set_alpha(0)
            yield figure
            for axes in figure.axes:
                axes.patch.set_alpha(0)
    finally:
        _scale.reset(token)


def _style() -> dict[str, Any]:
    """The style, with all sizes in points."""
    return STYLE | {name: points(size) for name, size in SIZES.items()}


@contextmanager
def titled(figure: Figure, title: str) -> Iterator[None]:
    """Add a title above the figure when the context ends. The paper may replace or remove it: web
    pages show pictures without titles, under their own headings."""
    asked = _paper.get().title
    title = title if asked is None else asked
    if not title:
        yield
        return
    width, height = figure.get_size_inches()
    size = min(11.5, 11.5 * width / TITLE_WIDTH)
    with matplotlib.rc_context(_style()):
        text = figure.suptitle("", x=0.02, ha="left", fontsize=size, fontweight="bold")
    for letters in range(int(12 * TITLE_WIDTH), 9, -1):
        lines = [line for part in title.split("\n") for line in textwrap.wrap(part, letters)]
        text.set_text("\n".join(lines))
        if text.get_window_extent().width <= 0.96 * figure.bbox.width:
            break
    figure.set_size_inches(width, height + (0.1 + 0.2 * len(lines)) * size / 11.5)
    try:
        yield
    finally:
        text.set_text("")
        text.set_in_layout(False)
        figure.set_size_inches(width, height)


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a file; the suffix of `path` chooses among `FORMATS`."""
    _write(figure, path, path.suffix[1:].lower())


def as_svg(figure: Figure) -> str:
    """The figure as the text of an SVG file."""
    file = BytesIO()
    _write(figure, file, "svg")
    return file.getvalue().decode("utf-8")


def _write(figure: Figure, file: Path | BytesIO, kind: str) -> None:
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context(_style()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # models write what no font has
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)
