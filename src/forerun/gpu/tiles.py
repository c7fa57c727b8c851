"""How the products of a pass are cut into programs.

A tile changes the time of a product and not its bits.  These were found on an H200 by coordinate
descent on the time of a whole captured pass of an 8-billion model (benchmarks/gpu_tiles.py): each
kernel alone prefers others, which together are slower.
"""

from __future__ import annotations

from typing import NamedTuple

BYTES = 2  # of a weight
SHORTEST = 32  # steps
FEWEST_STAGES = 3


class Tile(NamedTuple):
    """BN output columns per program, in steps of BK inputs."""

    columns: int
    depth: int
    warps: int
    stages: int


TILES: dict[str, dict[int, Tile]] = {
    "qkv": {
        16: Tile(32, 256, 4, 4),
        32: Tile(16, 256, 2, 4),
        64: Tile(32, 128, 4, 4),
        128: Tile(32, 64, 8, 6),
    },
    "out": {
        16: Tile(16, 256, 2, 6),
        32: Tile(32, 256, 4, 6),
        64: Tile(32, 128, 4, 6),
        128: Tile(32, 64, 8, 6),
    },
    "gate_up": {
        16: Tile(128, 128, 4, 3),
        32: Tile(64, 128, 4, 3),
        64: Tile(128, 64, 8, 3),
        128: Tile(128, 64, 8, 4),
    },
    "down": {
        16: Tile(32, 256, 4, 6),
        32: Tile(32, 512, 4, 3),
        64: Tile(32, 128, 4, 6),
        128: Tile(32, 64, 8, 6),
    },
    "head": {
        16: Tile(256, 128, 2, 3),
        32: Tile(128, 128, 4, 3),
        64: Tile(128, 64, 4, 6),
        128: Tile(256, 64, 8, 3),
    },
}
"""By kernel, then by tokens of the pass, padded."""


PAIRED = ("qkv", "gate_up")
"""Kernels that read two matrices at once."""
FEWEST_PROGRAMS = 64
"""A product of a small model is cut narrower, as long as it makes fewer programs: one alone does
not read at the speed of memory."""
NARROWEST, MOST_NARROWED = 16, 64
"""Columns of a tile; tokens of passes whose tiles are narrowed."""


def tile(
    kernel: str,
    num_tokens: int,
    depth: int,
    memory: int,
    num_columns: int | None = None,
    num_outputs: int | None = None,
) -> Tile:
    """The tile of a product with so many inputs per row, which fits the shared memory of a program.

    num_columns: instead of those of the table.  A step that divides the inputs spares the masks.
    num_outputs: of the product, where its tiles may be narrower than that.
    """
    chosen = TILES[kernel][num_tokens]
    if num_columns is not None:
        chosen = chosen._replace(columns=num_columns)
    while num_outputs and num_tokens <= MOST_NARROWED and chosen.columns > NARROWEST:
        if num_outputs > (FEWEST_PROGRAMS - 1) * chosen.columns:
            break
        chosen = chosen._replace(columns=chosen.columns // 2, warps=max(2, chosen.warps // 2))
    width = chosen.columns * (2 if kernel in PAIRED else 1) + num_tokens
    while chosen.stages * width * chosen.depth * BYTES > memory and chosen.depth > SHORTEST:
        if chosen.stages > FEWEST_STAGES:
            chosen = chosen._replace(stages=chosen.stages - 1)
        else:
            chosen = chosen._replace(depth=chosen.depth // 2)
    for step in (chosen.depth, 128, 64, SHORTEST):
        if step <= chosen.depth and depth % step == 0:
            return chosen._replace(depth=step)
    return chosen._replace(depth=min(chosen.depth, 64))
