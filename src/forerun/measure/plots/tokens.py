"""One generation token by token, as a picture for where no page can be shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from forerun.base.drawing import BLUE, GREY, VERMILION, canvas, points
from forerun.measure.naming import length_words, series_of
from forerun.measure.plots.plot import WIDTH, Plot
from forerun.measure.records import Token
from forerun.measure.results import Results

COLUMNS, MAX_LINES = 72, 30
COLOURS = {"accepted": BLUE, "correction": VERMILION, "bonus": GREY}
ADVANCE = 0.602  # width of a character over its size, in the monospaced font that is drawn
READING = (
    "Tokens that came from the draft are blue, corrections of wrong guesses orange, bonus "
    "tokens grey; the paler, the less probable under the target."
)


def tokens(results: Results) -> Plot | None:
    """Draw a generation token by token, coloured by fate; None where none was recorded."""
    sample = results.sample
    if sample is None:
        return None
    placed = layout(sample.tokens)
    lines = 1 + max((row for row, _, _, _ in placed), default=0)
    accepted = sum(token.fate == "accepted" for token in sample.tokens)
    how = f"{series_of(sample.cell).label} with {length_words(sample.cell)}"
    title = f"{accepted} of {len(sample.tokens)} tokens came from the draft of {how}"
    width = 1.5 * WIDTH
    with canvas(width, 0.6 + 0.28 * lines) as figure:
        plot = Plot("tokens", None, title, READING, figure)
        axes = figure.subplots()
        axes.set(xlim=(0, COLUMNS), ylim=(lines, 0))
        axes.axis("off")
        size = 72 * (width - 0.3) / COLUMNS / ADVANCE
        for row, column, text, token in placed:
            mark = _draw(axes, row, column, text, token, size)
            plot.tip(mark, f"{token.fate}, probability {token.probability:.1%}")
    return plot


def layout(tokens: Sequence[Token]) -> list[tuple[int, int, str, Token]]:
    """(row, column, text) of the tokens on a page of `COLUMNS` columns; the rest is cut."""
    placed: list[tuple[int, int, str, Token]] = []
    row = column = 0
    for token in tokens:
        for number, part in enumerate(token.text.replace("\t", "    ").split("\n")):
            if number:
                row, column = row + 1, 0
            if column + _columns(part) > COLUMNS and column:
                row, column, part = row + 1, 0, part.lstrip()
            if row >= MAX_LINES:
                return placed
            if part:
                placed.append((row, column, part[:COLUMNS], token))
            column += _columns(part)
    return placed


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _draw(axes: Any, row: int, column: int, text: str, token: Token, size: float) -> Any:
    colour, width = COLOURS.get(token.fate, GREY), _columns(text)
    depth = 0.05 + 0.25 * token.probability
    (mark,) = axes.barh(row + 0.5, width, 0.86, column, color=colour, alpha=depth)
    axes.plot(
        [column + 0.1, column + width - 0.1], [row + 0.93] * 2, color=colour, linewidth=points(1.2)
    )
    axes.text(
        column, row + 0.5, text, family="monospace", fontsize=points(size), va="center_baseline"
    )
    return mark
