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
from io import BytesIO
from pathlib import Path

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
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY)

STYLE = {
    "font.size": 11,
    "font.family": "sans-serif",
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.2,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.linewidth": 2.2,
    "lines.markersize": 5.5,
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "svg.fonttype": "none",
    "svg.hashsalt": "forerun",  # the same figures give the same bytes
}


@contextmanager
def canvas(width: float, height: float, *, padding: float = 0.12) -> Iterator[Figure]:
    """An empty figure of a size in inches; axes that are made within the context have our style.

    padding: the space above and below each of the axes, in inches.
    """
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=padding)
        figure = Figure(figsize=(width, height), layout=layout)
        figure.patch.set_alpha(0)
        yield figure
        for axes in figure.axes:
            axes.patch.set_alpha(0)


@contextmanager
def titled(figure: Figure, title: str) -> Iterator[None]:
    """Within the context, the figure has a title; pages show it without, under their headings."""
    width, height = figure.get_size_inches()
    letters = int(8.6 * width)  # letters in a line of the title
    lines = [line for part in title.split("\n") for line in textwrap.wrap(part, letters)]
    with matplotlib.rc_context(STYLE):
        text = figure.suptitle(
            "\n".join(lines), x=0.02, ha="left", fontsize=11.5, fontweight="bold"
        )
        figure.set_size_inches(width, height + 0.1 + 0.2 * len(lines))
        yield
        text.set_text("")
        text.set_in_layout(False)
        figure.set_size_inches(width, height)


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a file; the suffix of `path` chooses SVG or PNG."""
    _write(figure, path, path.suffix[1:].lower())


def as_svg(figure: Figure) -> str:
    """The figure as the text of an SVG file."""
    file = BytesIO()
    _write(figure, file, "svg")
    return file.getvalue().decode("utf-8")


def _write(figure: Figure, file: Path | BytesIO, kind: str) -> None:
    metadata = {"Date": None} if kind == "svg" else None
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # models write what no font has
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)
