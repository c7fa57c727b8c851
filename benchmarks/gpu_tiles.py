"""Tiles of the products of a pass: coordinate descent on the time of a whole captured pass.

    python benchmarks/gpu_tiles.py [--tokens 16] [--beside 1 6] [--size 8b] [--seconds 80]

The model is the target of benchmarks/gpu.py.  Kernel by kernel, the tiles next to the one in
`forerun.gpu.tiles` are tried in passes of --tokens tokens, and a faster one is taken, until no
kernel has a faster neighbour or the time is over.  Passes of --beside tokens are timed with the
first tiles and with the last.  A tile changes no bit of a pass.  Every pair of times is taken in
turns, because the clock of a device drifts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import triton

from forerun.gpu.model import GpuModel
from forerun.gpu.rows import Line, fill
from forerun.gpu.shapes import PassShape, num_chunks
from forerun.gpu.storage import CapturedPass
from forerun.gpu.tiles import FEWEST_ROWS, TILES, Tile, chosen
from forerun.kernels.compiling import compile_together
from gpu import milliseconds
from llama_pair import Pair

CONTEXT = 64
GAIN = 0.001  # of the time, from which a tile is taken
COLUMNS, DEPTHS, WARPS, STAGES = (
    (16, 32, 64, 128, 256),
    (64, 128, 256, 512),
    (2, 4, 8),
    (3, 4, 5, 6),
)


def neighbours(tile: Tile) -> Iterator[Tile]:
    """Tiles with one number next to that of this one, and those with a product of columns and
    depth that is the same."""
    for name, values in (
        ("columns", COLUMNS),
        ("depth", DEPTHS),
        ("warps", WARPS),
        ("stages", STAGES),
    ):
        at = values.index(getattr(tile, name))
        for other in (at - 1, at + 1):
            if 0 <= other < len(values):
                yield tile._replace(**{name: values[other]})
    for columns, depth in (
        (2 * tile.columns, tile.depth // 2),
        (tile.columns // 2, 2 * tile.depth),
    ):
        if columns in COLUMNS and depth in DEPTHS:
            yield tile._replace(columns=columns, depth=depth)


class Descent:
    """A model, and passes of it with the tiles of the moment."""

    def __init__(self, size: str) -> None:
        self._model = GpuModel(Pair(size).target)
        self._rows = self._model.start(1, 2 * CONTEXT)
        self._rows.reserve(0, 0, 2 * CONTEXT)

    def prepared(self, count: int) -> CapturedPass:
        """A pass of so many tokens of one row, not captured yet."""
        logits = min(count, 64)
        shape = PassShape(
            count, logits, -(-count // 16), min(count, 16), num_chunks(CONTEXT + count)
        )
        made = CapturedPass(self._rows.storage, shape)
        lines = [Line(7 * i, 0, CONTEXT + i, CONTEXT + i, 0, (), i) for i in range(count)]
        fill(made.inputs, lines, list(range(logits)))
        return made

    def captured(self, count: int) -> CapturedPass | None:
        """The same, captured; None if the device has no room for a tile."""
        made = self.prepared(count)
        try:
            made.run()
            made.run()
        except triton.runtime.errors.OutOfResources:
            return None
        return made

    def improve(self, kernel: str, count: int) -> str:
        """Take the fastest neighbour of a kernel's tile; what was found, if any is faster."""
        rows = max(FEWEST_ROWS, triton.next_power_of_2(count))
        table, before = TILES[kernel], chosen(kernel, rows)
        others = list(neighbours(before))
        known = self.captured(count)
        assert known is not None

        def queue(tile: Tile) -> Any:
            def launch() -> None:
                table[rows] = tile
                self.prepared(count).queue()

            return launch

        compile_together([queue(tile) for tile in others])
        best, gain = before, GAIN
        for tile in others:
            table[rows] = tile
            made = self.captured(count)
            if made is None:
                continue
            ratio = 1 - compared(made, known)
            if ratio > gain:
                best, gain = tile, ratio
        table[rows] = best
        return "" if best is before else f"{before} -> {best}: {100 * gain:.2f}% of the pass"


def compared(first: CapturedPass, second: CapturedPass) -> float:
    """The time of one pass over that of another."""
    ratios = [milliseconds(first.run, 8) / milliseconds(second.run, 8) for _ in range(3)]
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--beside", type=int, nargs="*", default=[1, 6])
    parser.add_argument("--size", default="8b")
    parser.add_argument("--seconds", type=float, default=80)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_tiles: no CUDA device, nothing measured")
        return
    begin = time.perf_counter()
    with torch.inference_mode():
        descent = Descent(args.size)
        counts = [args.tokens, *args.beside]
        firsts = {count: descent.captured(count) for count in counts}
        is_better = True
        while is_better:
            is_better = False
            for kernel in TILES:
                if time.perf_counter() - begin > args.seconds:
                    break
                if note := descent.improve(kernel, args.tokens):
                    is_better = True
                    print(f"{kernel:8} {note}", flush=True)
        rows = max(FEWEST_ROWS, triton.next_power_of_2(args.tokens))
        for kernel in TILES:
            print(f"{kernel:8} {rows}: {chosen(kernel, rows)}")
        for count, first in firsts.items():
            last = descent.captured(count)
            assert first is not None
            assert last is not None
            old, new = (milliseconds(made.run) for made in (first, last))
            print(f"pass of {count}: {old:.4f} -> {new:.4f} ms")


if __name__ == "__main__":
    main()
