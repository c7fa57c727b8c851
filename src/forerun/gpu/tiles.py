"""How the products of a pass are cut into programs.

A tile changes the time of a product and not its bits.  Those of up to 64 tokens were found on an
H200 by coordinate descent on the time of a whole captured pass of an 8-billion model
(benchmarks/gpu_tiles.py): each kernel alone prefers others, which together are slower.  Those of
more tokens are the fastest of each kernel alone.
"""

from __future__ import annotations

from typing import NamedTuple

from forerun.models.packed import Number

BYTES = 2  # of a weight
FEWEST_ROWS = 16  # of a tensor-core product
SHORTEST = 32  # steps
FEWEST_STAGES = 3


class Tile(NamedTuple):
    """The size of a tile: output columns per program, inputs per step, and tokens."""

    columns: int
    depth: int
    warps: int
    stages: int
    rows: int = 0  # tokens per program; 0: all of the pass

    def grid(self, num_tokens: int, num_outputs: int) -> tuple[int, int]:
        """The programs of a product; tiles of tokens that share weights are neighbours."""
        return -(-num_tokens // self.rows), -(-num_outputs // self.columns)


TILES: dict[str, dict[int, Tile]] = {
    "qkv": {
        16: Tile(32, 256, 4, 4),
        32: Tile(16, 256, 2, 4),
        64: Tile(32, 128, 4, 4),
        128: Tile(64, 64, 4, 4, rows=64),
        256: Tile(64, 128, 8, 3, rows=128),
        512: Tile(64, 64, 4, 3, rows=128),
        1024: Tile(64, 128, 8, 3, rows=128),
    },
    "out": {
        16: Tile(16, 256, 2, 6),
        32: Tile(32, 256, 4, 6),
        64: Tile(32, 128, 4, 6),
        128: Tile(64, 128, 4, 4, rows=64),
        256: Tile(64, 64, 4, 6, rows=64),
        512: Tile(128, 64, 8, 4, rows=128),
        1024: Tile(256, 64, 8, 3, rows=128),
    },
    "gate_up": {
        16: Tile(128, 128, 4, 3),
        32: Tile(64, 128, 4, 3),
        64: Tile(128, 64, 8, 3),
        128: Tile(128, 64, 8, 4),
        1024: Tile(128, 64, 8, 4, rows=128),
    },
    "down": {
        16: Tile(32, 256, 4, 6),
        32: Tile(32, 512, 4, 3),
        64: Tile(32, 128, 4, 6),
        128: Tile(64, 128, 4, 4, rows=64),
        256: Tile(64, 128, 8, 3, rows=128),
        512: Tile(128, 64, 8, 4, rows=128),
        1024: Tile(256, 64, 8, 3, rows=128),
    },
    "head": {
        16: Tile(256, 128, 2, 3),
        32: Tile(128, 128, 4, 3),
        64: Tile(128, 64, 4, 6),
        1024: Tile(256, 64, 8, 3, rows=128),
    },
}
"""The tiles of unpacked matrices, by kernel and by the largest number of tokens of a pass."""

PACKED_TILES: dict[int, dict[str, dict[int, Tile]]] = {
    8: {
        "qkv": {32: Tile(32, 0, 4, 6), 64: Tile(32, 0, 4, 3), 128: Tile(64, 0, 4, 3)},
        "out": {32: Tile(32, 0, 4, 4), 64: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 3)},
        "gate_up": {32: Tile(32, 0, 2, 3), 64: Tile(64, 0, 4, 3), 128: Tile(64, 0, 8, 3)},
        "down": {32: Tile(64, 0, 4, 4), 64: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 3)},
        "expert_down": {32: Tile(64, 0, 4, 4), 128: Tile(64, 0, 4, 3)},
        "head": {32: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 3)},
    },
    4: {
        "qkv": {32: Tile(32, 0, 4, 4), 64: Tile(32, 0, 4, 3), 128: Tile(64, 0, 4, 2)},
        "out": {32: Tile(32, 0, 4, 4), 64: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 2)},
        "gate_up": {32: Tile(32, 0, 4, 3), 64: Tile(64, 0, 4, 2), 128: Tile(64, 0, 8, 2)},
        "down": {32: Tile(32, 0, 4, 4), 64: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 2)},
        "expert_down": {32: Tile(32, 0, 2, 5), 64: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 2)},
        "head": {32: Tile(64, 0, 4, 3), 128: Tile(64, 0, 4, 2)},
    },
}
"""The tiles of matrices of few bits, by the bits of a number, the kernel, and the largest number of
tokens of a pass. The depth of a step is 0 here, because it follows from the packing."""


PAIRED = ("qkv", "gate_up")
"""The kernels that read two matrices at once."""
FEWEST_PROGRAMS = 64
"""If a product of a small model has fewer programs than this, its tiles are made narrower, because
few programs cannot read at the full speed of the memory."""
MOST_PACKED = 128
"""The most tokens of a pass that multiplies packed matrices directly. A larger pass first writes
each matrix out, because otherwise all of its tiles of tokens would unpack the same weights."""
NARROW_ROWS, LONG, AHEAD = 32, 256, 768
"""Products of at most the first number of rows with a packed matrix take several steps at once
where a step has fewer inputs than the second number, and request at least the third number of
inputs ahead."""
AT_ONCE = (5, 4, 3, 2)
"""How many steps may be taken at once, the best first; the number of steps is a multiple."""
MOST_OF_TABLES = 16
"""The most bytes of scales and other tables that a row of weights has in a part."""
NARROWEST, MOST_NARROWED = 16, 64
"""Tiles get no fewer columns than the first number, and are made narrower only in passes of at most
the second number of tokens."""


def chosen(kernel: str, num_tokens: int) -> Tile:
    """The tile of a product of `num_tokens` tokens."""
    most = min(most for most in TILES[kernel] if most >= num_tokens)
    found = TILES[kernel][most]
    return found if found.rows else found._replace(rows=most)


def tile(
    kernel: str,
    num_tokens: int,
    depth: int,
    memory: int,
    num_columns: int | None = None,
    num_outputs: int | None = None,
) -> Tile:
    """A tile of a product with this many inputs per row, which fits the shared memory of a program.

    num_columns: the columns of the tile, instead of those of the table. A step that divides the
    number of inputs is preferred, because no masks are then needed. num_outputs: the outputs of the
    product; if given, tiles are made narrower where few programs would result.
    """
    made = _narrowed(chosen(kernel, num_tokens), num_tokens, num_columns, num_outputs)
    width = made.columns * (2 if kernel in PAIRED else 1) + made.rows
    while made.stages * width * made.depth * BYTES > memory and made.depth > SHORTEST:
        if made.stages > FEWEST_STAGES:
            made = made._replace(stages=made.stages - 1)
        else:
            made = made._replace(depth=made.depth // 2)
    for step in (made.depth, 128, 64, SHORTEST):
        if step <= made.depth and depth % step == 0:
            return made._replace(depth=step)
    return made._replace(depth=min(made.depth, 64))


def packed_tile(
    kernel: str,
    num_tokens: int,
    about: Number,
    part: int,
    num_inputs: int,
    memory: int,
    num_columns: int | None = None,
    num_outputs: int | None = None,
) -> Tile:
    """The tile of a product with a packed matrix. about: the kind of its numbers. part: the number
    of inputs in a part. num_inputs: those of a row."""
    table = PACKED_TILES[8 if about.bits == 8 else 4][kernel]
    most = min((most for most in table if most >= num_tokens), default=max(table))
    rows = padded(min(num_tokens, most))
    depth = about.parts * part
    made = table[most]._replace(rows=rows, depth=depth)
    if rows <= NARROW_ROWS:
        steps = num_inputs // depth
        if depth < LONG:
            depth *= next((n for n in AT_ONCE if steps % n == 0 and steps > n), 1)
        made = made._replace(depth=depth, stages=max(made.stages, -(-AHEAD // depth)))
    made = _narrowed(made, num_tokens, num_columns, num_outputs)
    width = 2 if kernel in PAIRED else 1

    def num_bytes(made: Tile) -> int:
        weights = made.columns * width * made.depth * about.words // about.parts
        tables = made.columns * width * made.depth // part * MOST_OF_TABLES
        return made.stages * ((weights + made.rows * made.depth) * BYTES + tables)

    while num_bytes(made) > memory and made.stages > 2:
        made = made._replace(stages=made.stages - 1)
    while num_bytes(made) > memory and made.rows > FEWEST_ROWS:
        made = made._replace(rows=made.rows // 2)
    while num_bytes(made) > memory and made.columns > NARROWEST:
        made = made._replace(columns=made.columns // 2)
    return made


def padded(num_tokens: int) -> int:
    """The rows of a tile for this many tokens."""
    return max(FEWEST_ROWS, 1 << (num_tokens - 1).bit_length())


def _narrowed(
    made: Tile, num_tokens: int, num_columns: int | None, num_outputs: int | None
) -> Tile:
    """A tile with another number of columns (if given), or with fewer columns if the product would
    otherwise have few programs."""
    if num_columns is not None:
        made = made._replace(columns=num_columns)
    while num_outputs and num_tokens <= MOST_NARROWED and made.columns > NARROWEST:
        if num_outputs > (FEWEST_PROGRAMS - 1) * made.columns:
            break
        made = made._replace(columns=made.columns // 2, warps=max(2, made.warps // 2))
    return made
