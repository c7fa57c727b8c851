"""A curve for the terminal: eight dots to a character, so 60 columns show a smooth line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille character: column first, then row from the top."""


class CurveLine(NamedTuple):
    """One text line of the drawing, in parts, so that a caller may colour them."""

    label: str
    plot: str


def draw_curve(
    xs: Sequence[int],
    ys: Sequence[float],
    *,
    baseline: float,
    mark: int,
    width: int = 60,
    height: int = 9,
) -> list[CurveLine]:
    """The polyline through (xs, ys), a dotted `baseline` and a diamond at point `mark`."""
    low, high = min(*ys, baseline), max(*ys, baseline)
    span = (high - low) or 1.0
    num_columns, num_rows = 2 * width, 4 * height

    def row_of(y: float) -> int:  # dot rows, counted from the top
        return round((high - y) / span * (num_rows - 1))

    columns = np.linspace(xs[0], xs[-1], num_columns)
    rows = [row_of(y) for y in np.interp(columns, xs, ys)]
    cells = [[0] * width for _ in range(height)]

    def dot(column: int, row: int) -> None:
        cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]

    for column in range(num_columns):
        if column % 4 == 0:
            dot(column, row_of(baseline))
        here, before = rows[column], rows[max(column - 1, 0)]
        step = 1 if before < here else -1
        for row in range(before, here, step):  # a steep line stays connected
            dot(column, row)
        dot(column, here)

    drawing = [[chr(0x2800 + bits) if bits else " " for bits in line] for line in cells]
    x_mark = _column_of(xs[mark], xs, width)
    drawing[row_of(ys[mark]) // 4][x_mark] = "◆"

    labels = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
    labels[row_of(baseline) // 4] = f"{baseline:.2f}"
    gutter = max(map(len, labels.values()))
    lines = [
        CurveLine(f"{labels.get(row, ''):>{gutter}} │", "".join(line))
        for row, line in enumerate(drawing)
    ]
    return [*lines, CurveLine(" " * gutter + " └", "─" * width), _ticks(xs, width, gutter)]


def _column_of(x: int, xs: Sequence[int], width: int) -> int:
    return round((x - xs[0]) / (xs[-1] - xs[0]) * (width - 1))


def _ticks(xs: Sequence[int], width: int, gutter: int) -> CurveLine:
    """The x values below the axis, leaving out those that would touch."""
    text = [" "] * (width + 4)
    free_from = 0
    for x in xs:
        start = _column_of(x, xs, width)
        if start >= free_from:
            text[start : start + len(str(x))] = str(x)
            free_from = start + len(str(x)) + 1
    return CurveLine(" " * (gutter + 2), "".join(text).rstrip())
