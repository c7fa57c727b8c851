"""A plot as inline SVG: it uses the page's colours and fonts, and its marks have tooltips.

Matplotlib writes colours as they were drawn.  Here they become CSS variables, so that one drawing
serves light and dark, and the reader's own choice between them decides.
"""

from __future__ import annotations

import re
from html import escape

from forerun.base import drawing
from forerun.measure.plots import Plot

VARIABLES = {
    drawing.BLUE: "blue",
    drawing.VERMILION: "vermilion",
    drawing.GREEN: "green",
    drawing.PINK: "pink",
    drawing.ORANGE: "orange",
    drawing.SKY: "sky",
    drawing.GREY: "soft",
    "#ffffff": "on-mark",
}


def inline(plot: Plot, number: int) -> str:
    """The plot as the <svg> element with this number; the page defines the colour variables."""
    text = drawing.as_svg(plot.figure)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None, "matplotlib always writes a view box"
    text = text[text.index("<defs>") :]
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'="[^"]*"', lambda match: _attribute(match[0]), text)
    text = re.sub(r">\s+<", "><", text)
    text = _with_own_ids(_explained(text, plot), f"p{number}-")
    label = f'role="img" aria-labelledby="p{number}-title p{number}-reading"'
    return f'<svg {view[0]} {label} xmlns:xlink="http://www.w3.org/1999/xlink">{text.strip()}'


def _attribute(text: str) -> str:
    """Our colours as variables; no fonts, no digits beyond a hundredth, no line breaks."""
    for colour, variable in VARIABLES.items():
        text = re.sub(colour, f"var(--{variable})", text, flags=re.IGNORECASE)
    text = re.sub(r" ?font-family:[^;\"]*;?", "", text)
    text = re.sub(r"(font:[^;\"]*?px) [^;\"]*", r"\1 var(--font)", text)
    text = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", text)
    return re.sub(r"\s+", " ", text)


def _explained(text: str, plot: Plot) -> str:
    """Add a tooltip to each mark that has one."""

    def title(match: re.Match[str]) -> str:
        return f'<g class="mark"><title>{escape(plot.tips[match[1]])}</title>'

    return re.sub(r'<g id="(mark-\d+)">', title, text)


def _with_own_ids(text: str, prefix: str) -> str:
    """Keep only ids that are referenced, and prefix them to be unique within the page."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{prefix}{match[1]}"' if match[1] in used else ""

    text = re.sub(r' id="([^"]+)"', renamed, text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)
