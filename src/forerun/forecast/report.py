"""Reports a scan: tables and a curve for the terminal, plain dictionaries for programs.

The curve has eight dots to a character (braille), so that 60 columns show a smooth line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from forerun.forecast.simulator import Estimate, Scan, Simulation

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot of a braille character: column first, then row from the top."""

Paint = Callable[[str, str], str]
"""A function from a text and a style to coloured text; styles are "best", "curve", "faint"."""

STYLES = {"best": "1;32", "curve": "36", "faint": "2"}


def in_colour(text: str, style: str) -> str:
    """A text with the terminal's escape codes of a style."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def plain_text(text: str, style: str) -> str:
    """A text without colour."""
    return text


def render(scan: Scan, *, in_seconds: bool, paint: Paint = plain_text) -> str:
    """The report as text: tables by draft length and by batch, the curve between them, and advice.

    in_seconds: costs are in seconds, not relative.  paint: colours parts of the text.
    """
    blocks = [_by_draft_length(scan, in_seconds, paint)]
    if len(scan.draft_lengths) > 1:
        blocks.append(_curve(scan, paint))
    if len(scan.batches) > 1:
        blocks.append(_by_batch(scan, paint))
    blocks.append(iter([_advice(scan)]))
    return "\n\n".join("\n".join(block) for block in blocks)


def as_dict(scan: Scan, *, in_seconds: bool) -> dict[str, Any]:
    """All numbers of the tables, unrounded, as dictionaries and lists."""
    return {
        "unit_of_time": "second" if in_seconds else "target pass over one token",
        "batches": [
            {
                "batch": batch,
                "best_draft_length": scan.best(batch).draft_length,
                "runs": [_run_as_dict(run) for run in runs],
            }
            for batch, runs in scan.by_batch.items()
        ],
    }


def _run_as_dict(run: Simulation) -> dict[str, Any]:
    names = ("tokens_per_round", "speedup", "latency", "throughput")
    estimates = {name: getattr(run, name)._asdict() for name in names}
    return {"draft_length": run.draft_length, **estimates}


def _by_draft_length(scan: Scan, in_seconds: bool, paint: Paint) -> Iterator[str]:
    batch = scan.batches[0]
    best = scan.best(batch)
    times = f"{'ms/token':>8}  {'tokens/s':>9}" if in_seconds else f"{'passes/token':>12}"
    yield f"batch {batch}"
    yield paint(f"{'K':>4}  {'tokens per round':<20}  {'speed-up':<20}  {times}", "faint")
    for run in scan.by_batch[batch]:
        tokens, gain = _interval(run.tokens_per_round), _interval(run.speedup, "x")
        times = _times(run) if in_seconds else f"{run.latency.mean:>12.3f}"
        row = f"{run.draft_length:>4}  {tokens:<20}  {gain:<20}  {times}"
        yield paint(row + "  ◆ best", "best") if run is best else row


def _times(run: Simulation) -> str:
    return f"{run.latency.mean * 1e3:>8.3f}  {run.throughput.mean:>9,.0f}"


def _curve(scan: Scan, paint: Paint) -> Iterator[str]:
    runs = scan.by_batch[scan.batches[0]]
    yield "speed-up by draft length K"
    lines = draw_curve(
        scan.draft_lengths,
        [run.speedup.mean for run in runs],
        baseline=1.0,
        mark=runs.index(scan.best(scan.batches[0])),
    )
    for line in lines:
        yield (paint(line.label, "faint") + paint(line.plot, "curve")).rstrip()


def _by_batch(scan: Scan, paint: Paint) -> Iterator[str]:
    times = f"{'ms/token':>8}  {'tokens/s':>9}"
    yield "as the batch grows, at the best K and plain"
    yield paint(f"{'batch':>6} {'K':>3}  {'speed-up':<20}  {times}  |  {times}", "faint")
    for batch in scan.batches:
        best, plain = scan.best(batch), scan.by_batch[batch][0]
        gain = f"{_interval(best.speedup, 'x'):<20}"
        yield f"{batch:>6} {best.draft_length:>3}  {gain}  {_times(best)}  |  {_times(plain)}"


def _advice(scan: Scan) -> str:
    first, *later = (scan.best(batch) for batch in scan.batches)
    if not later or first.draft_length == later[-1].draft_length == 0:
        return _verdict(first)
    if later[-1].draft_length > 0:
        return f"{_verdict(first)}  {_verdict(later[-1])}"
    speculating = [run.batch for run in later if run.draft_length > 0]
    lost = next(run.batch for run in later if run.batch > max(speculating, default=0))
    return f"{_verdict(first)}  From batch {lost} on, do not speculate."


def _verdict(run: Simulation) -> str:
    if run.draft_length == 0:
        return f"Do not speculate at batch {run.batch}: no draft length beats plain decoding."
    return f"Draft {run.draft_length} at batch {run.batch}: {run.speedup.mean:.2f}x."


def _interval(value: Estimate, unit: str = "") -> str:
    if value.low == value.high:
        return f"{value.mean:.2f}{unit}"
    return f"{value.mean:.2f}{unit} [{value.low:.2f}, {value.high:.2f}]"


class CurveLine(NamedTuple):
    """One line of the drawn curve, in two parts so that a caller may colour them."""

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
    """Draw the polyline through (xs, ys), a dotted `baseline` and a diamond at point `mark`.

    width, height: the size of the plot in characters.
    """
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
    """The x values below the axis, without labels that would touch the one before."""
    text = [" "] * (width + 4)
    free_from = 0
    for x in xs:
        start = _column_of(x, xs, width)
        if start >= free_from:
            text[start : start + len(str(x))] = str(x)
            free_from = start + len(str(x)) + 1
    return CurveLine(" " * (gutter + 2), "".join(text).rstrip())
