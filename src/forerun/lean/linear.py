"""Linear layers for few tokens: each weight is read once and meets every token of the pass.

A matrix (out, in) is kept as panels of LANES outputs, so that the inner loop runs over memory in
order and over outputs in vectors.  More tokens than one tile holds are multiplied in several tiles,
so a long prompt takes the same path.

Only a model that has K-quants compiles their loops.  Numba leaves out code behind `is None` where
the type of an argument decides the answer, so `has_k_quants` is None instead of False: without
these loops, compiling a pass takes a quarter less time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.dots import DOTS, LIMBS_4, LIMBS_8
from forerun.lean.formats import BLOCK, UNIT, Format
from forerun.lean.jit import counted, inlined, inner
from forerun.lean.limb_tile import (
    multiply_coarse_block4,
    multiply_coarse_block8,
    multiply_limbs_block4,
    multiply_limbs_block4k,
    multiply_limbs_block5,
    multiply_limbs_block5k,
    multiply_limbs_block6k,
    multiply_limbs_block8,
)
from forerun.lean.limbs import COARSE, FINE, cut_block_coarse, cut_block_fine
from forerun.lean.scalar import exp
from forerun.lean.shape import LANES, TOKENS
from forerun.lean.tile import (
    multiply_bfloat16,
    multiply_block4,
    multiply_block4k,
    multiply_block5,
    multiply_block5k,
    multiply_block6k,
    multiply_block8,
    multiply_float16,
    multiply_float32,
    multiply_float32_onto,
)
from forerun.lean.unpack import (
    unpack_bfloat16,
    unpack_block4,
    unpack_block4k,
    unpack_block5,
    unpack_block5k,
    unpack_block6k,
    unpack_block8,
    unpack_float16,
    unpack_float32,
)

BLOCK6K, BLOCK5K, BLOCK5 = int(Format.BLOCK6K), int(Format.BLOCK5K), int(Format.BLOCK5)
K_FORMATS = (Format.BLOCK6K, Format.BLOCK5K, Format.BLOCK5, Format.BLOCK4K)

CHUNK = UNIT  # inputs
FLOAT32, BFLOAT16, FLOAT16 = int(Format.FLOAT32), int(Format.BFLOAT16), int(Format.FLOAT16)
BLOCK8, BLOCK4 = int(Format.BLOCK8), int(Format.BLOCK4)
FIRST_OF_LIMBS = BLOCK8 if LIMBS_8 else BLOCK4  # the first format that is multiplied with limbs
MOST_TOKENS, BEST_TOKENS = DOTS.most_tokens, DOTS.best_tokens
FINE_BYTES, COARSE_BYTES = FINE.num_bytes, COARSE.num_bytes

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Matrices(NamedTuple):
    """All matrices of a model in one piece of memory, in the order in which a pass uses them."""

    panels: NDArray[np.uint8]  # their bytes
    biases: Floats
    format: NDArray[np.int64]  # (panels,): a matrix may have panels in several formats
    panel_at: NDArray[np.int64]  # (panels + 1,): where each panel begins in `panels`, and their end
    depth: NDArray[np.int64]  # (matrices,): number of inputs
    takes_limbs: NDArray[
        np.bool_
    ]  # (matrices,): whether some of its panels are multiplied by limbs
    output_at: NDArray[np.int64]  # (matrices,): where its biases begin
    has_k_quants: Any  # True, or None for False
    is_coarse: Any  # whether inputs are cut into one limb: True, or None for False


class Gate(NamedTuple):
    """The activation of an MLP's gate: g times the logistic function of g * (a + b * g**2)."""

    a: Any  # float32
    b: Any  # float32


SILU = Gate(np.float32(1), np.float32(0))
GELU_TANH = Gate(np.float32(1.5957691216057308), np.float32(0.071354816272))
"""GELU with tanh: a is 2 * sqrt(2 / pi), b is 0.044715 times that."""


class Work(NamedTuple):
    """Working memory of one thread, and the limbs that all threads read."""

    sums: Floats  # (tokens, LANES)
    gates: Floats  # (tokens, LANES)
    flat: Floats  # (CHUNK * LANES,): weights written out
    limbs: Bytes  # (tokens, bytes of a cut block * blocks)


@counted
def make_work(num_tokens: int, limbs: Bytes) -> Work:
    """Working memory for passes of at most `num_tokens` tokens."""
    num_tokens = max(num_tokens, TOKENS)
    return Work(
        np.empty((num_tokens, LANES), np.float32),
        np.empty((num_tokens, LANES), np.float32),
        np.empty(CHUNK * LANES, np.float32),
        limbs,
    )


def make_limbs(m: Matrices, num_tokens: int) -> Bytes:
    """Memory (num_tokens, bytes) for the limbs of tokens, enough for any of the matrices."""
    blocks = int(m.depth.max()) // BLOCK if LIMBS_4 else 0
    cut = FINE if m.is_coarse is None else COARSE
    return np.empty((num_tokens, blocks * cut.num_bytes), np.uint8)


@inner
def cut(m: Matrices, index: int, x: Floats, limbs: Bytes) -> None:
    """Write one token's inputs x of a matrix as limbs, if the matrix takes limbs."""
    if LIMBS_4 and m.takes_limbs[index]:
        for block in range(x.size // BLOCK):
            if m.is_coarse is None:
                cut_block_fine(x, block * BLOCK, limbs, block * FINE_BYTES)
            else:
                cut_block_coarse(x, block * BLOCK, limbs, block * COARSE_BYTES)


@inlined
def num_panels(outputs: Floats) -> Any:
    """The number of panels that compute outputs (tokens, width)."""
    return (outputs.shape[1] + LANES - 1) // LANES


@inlined
def panel(
    m: Matrices, index: int, number: int, x: Floats, num_tokens: int, sums: Floats, work: Work
) -> None:
    """Multiply one panel with the first `num_tokens` tokens of x, into sums (tokens, LANES).

    index: the matrix.  number: the panel in the matrix.  Biases are not added.
    """
    depth, w, place = m.depth[index], m.panels, m.output_at[index] // LANES + number
    at, format, blocks = m.panel_at[place], m.format[place], depth // BLOCK
    if LIMBS_4 and format >= FIRST_OF_LIMBS:
        panel_of_limbs(m, place, blocks, work.limbs, num_tokens, sums)
    elif num_tokens > TOKENS:
        panel_of_many(m, place, depth, x, num_tokens, sums, work.flat)
    elif format == FLOAT32:
        multiply_float32(x, 0, depth, w, at, depth, sums, 0, LANES, num_tokens)
    elif format == BFLOAT16:
        multiply_bfloat16(x, 0, depth, w, at, depth, sums, 0, LANES, num_tokens)
    elif format == FLOAT16:
        multiply_float16(x, 0, depth, w, at, depth, sums, 0, LANES, num_tokens)
    elif LIMBS_8:
        pass  # all blocks are multiplied by limbs: the branches below are not compiled
    elif format == BLOCK8:
        multiply_block8(x, 0, depth, w, at, depth, sums, 0, LANES, num_tokens)
    elif not LIMBS_4 and format == BLOCK4:
        multiply_block4(x, 0, depth, w, at, depth, sums, 0, LANES, num_tokens)
    else:
        multiply_k(m.has_k_quants, format, x, w, at, depth, sums, num_tokens)


@inner
def panel_of_limbs(
    m: Matrices, place: int, blocks: int, limbs: Bytes, num_tokens: int, sums: Floats
) -> None:
    """Multiply one panel with activations that `limbs` split into bytes, a tile of tokens at a
    time; the panel is small and stays in the cache."""
    w, at, format, stride = m.panels, m.panel_at[place], m.format[place], limbs.shape[1]
    tiles = 1 if num_tokens <= MOST_TOKENS else (num_tokens + BEST_TOKENS - 1) // BEST_TOKENS
    for tile in range(tiles):
        first, last = num_tokens * tile // tiles, num_tokens * (tile + 1) // tiles
        x_at, y_at, count = first * stride, first * LANES, last - first
        if m.is_coarse is not None:
            if LIMBS_8 and format == BLOCK8:
                multiply_coarse_block8(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
            else:
                multiply_coarse_block4(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
        elif LIMBS_8 and format == BLOCK8:
            multiply_limbs_block8(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
        elif format == BLOCK4:
            multiply_limbs_block4(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
        else:
            multiply_limbs_k(m.has_k_quants, format, limbs, x_at, w, at, blocks, sums, y_at, count)


@inner
def panel_of_many(
    m: Matrices, place: int, depth: int, x: Floats, num_tokens: int, sums: Floats, flat: Floats
) -> None:
    """Multiply one panel with more tokens than one tile holds.

    CHUNK inputs of the panel at a time are written out as float32, which stay in the innermost
    cache while they are multiplied with one tile after the other.  Each sum still runs over the
    inputs in order.
    """
    at, format = m.panel_at[place], m.format[place]
    panel_bytes = m.panel_at[place + 1] - at
    tiles = (num_tokens + TOKENS - 1) // TOKENS
    for i in range(num_tokens):
        for j in range(LANES):
            sums[i, j] = np.float32(0)
    for begin in range(0, depth, CHUNK):
        size, w_at = min(CHUNK, depth - begin), at + begin * panel_bytes // depth
        if format == FLOAT32:
            unpack_float32(m.panels, w_at, size, flat)
        elif format == BFLOAT16:
            unpack_bfloat16(m.panels, w_at, size, flat)
        elif format == FLOAT16:
            unpack_float16(m.panels, w_at, size, flat)
        elif LIMBS_8:
            pass
        elif format == BLOCK8:
            unpack_block8(m.panels, w_at, size, flat)
        elif not LIMBS_4 and format == BLOCK4:
            unpack_block4(m.panels, w_at, size, flat)
        else:
            unpack_k(m.has_k_quants, format, m.panels, w_at, size, flat)
        for tile in range(tiles):
            first, last = num_tokens * tile // tiles, num_tokens * (tile + 1) // tiles
            multiply_float32_onto(
                x, first * depth + begin, depth, flat, 0, size,
                sums, first * LANES, LANES, last - first,
            )  # fmt: skip


@inlined
def project(
    m: Matrices, index: int, number: int, x: Floats, places: NDArray[np.int64], y: Floats,
    work: Work,
) -> None:  # fmt: skip
    """Compute y[places[i]] (outputs,) = W x[i] + b for one panel."""
    panel(m, index, number, x, len(places), work.sums, work)
    begin, end = number * LANES, min((number + 1) * LANES, y.shape[1])
    biases = biases_of(m, index, number)
    for i in range(len(places)):
        out, own = y[places[i], begin:end], work.sums[i]
        for j in range(end - begin):
            out[j] = own[j] + biases[j]


@inlined
def project_onto(
    m: Matrices, index: int, number: int, x: Floats, num_tokens: int, y: Floats, work: Work
) -> None:
    """Compute y (tokens, outputs) += W x + b for one panel."""
    panel(m, index, number, x, num_tokens, work.sums, work)
    begin, end = number * LANES, min((number + 1) * LANES, y.shape[1])
    biases = biases_of(m, index, number)
    for i in range(num_tokens):
        out, own = y[i, begin:end], work.sums[i]
        for j in range(end - begin):
            out[j] += own[j] + biases[j]


@inlined
def project_gated(
    m: Matrices, index: int, number: int, x: Floats, num_tokens: int, gate: Gate, y: Floats,
    work: Work,
) -> None:  # fmt: skip
    """Compute y (tokens, outputs) = activation(G x) * (U x) for one panel of each matrix."""
    panel(m, index, 2 * number, x, num_tokens, work.gates, work)
    panel(m, index, 2 * number + 1, x, num_tokens, work.sums, work)
    begin, end = number * LANES, min((number + 1) * LANES, y.shape[1])
    gate_biases = biases_of(m, index, 2 * number)
    biases = biases_of(m, index, 2 * number + 1)
    for i in range(num_tokens):
        out, own, gates = y[i, begin:end], work.sums[i], work.gates[i]
        for j in range(end - begin):
            g = gates[j] + gate_biases[j]
            out[j] = (
                (own[j] + biases[j]) * g / (np.float32(1) + exp(-g * (gate.a + gate.b * g * g)))
            )


@inlined
def biases_of(m: Matrices, index: int, number: int) -> Floats:
    """The biases of one panel (LANES,)."""
    at = m.output_at[index] + number * LANES
    return m.biases[at : at + LANES]


@inner
def multiply_limbs_k(
    has_k_quants: Any, format: int, limbs: Bytes, x_at: int, w: Bytes, at: int, blocks: int,
    sums: Floats, y_at: int, count: int,
) -> None:  # fmt: skip
    """Multiply the limbs of `count` tokens, from `x_at` on, with the K-quant panel at `at`; the
    results go to `sums`, from `y_at` on."""
    if has_k_quants is None:
        return
    stride = limbs.shape[1]
    if LIMBS_8 and format == BLOCK6K:
        multiply_limbs_block6k(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
    elif LIMBS_8 and format == BLOCK5K:
        multiply_limbs_block5k(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
    elif LIMBS_8 and format == BLOCK5:
        multiply_limbs_block5(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
    else:
        multiply_limbs_block4k(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)


@inner
def multiply_k(
    has_k_quants: Any, format: int, x: Floats, w: Bytes, at: int, depth: int, sums: Floats,
    count: int,
) -> None:  # fmt: skip
    """Multiply the first `count` tokens of x (tokens, depth) with the K-quant panel at `at`."""
    if has_k_quants is None:
        return
    if format == BLOCK6K:
        multiply_block6k(x, 0, depth, w, at, depth, sums, 0, LANES, count)
    elif format == BLOCK5:
        multiply_block5(x, 0, depth, w, at, depth, sums, 0, LANES, count)
    elif LIMBS_4 or format == BLOCK5K:
        multiply_block5k(x, 0, depth, w, at, depth, sums, 0, LANES, count)
    else:
        multiply_block4k(x, 0, depth, w, at, depth, sums, 0, LANES, count)


@inner
def unpack_k(has_k_quants: Any, format: int, w: Bytes, at: int, size: int, flat: Floats) -> None:
    """Write `size` inputs of a K-quant panel, from `at` on, into `flat` as (size, LANES)."""
    if has_k_quants is None:
        return
    if format == BLOCK6K:
        unpack_block6k(w, at, size, flat)
    elif format == BLOCK5:
        unpack_block5(w, at, size, flat)
    elif LIMBS_4 or format == BLOCK5K:
        unpack_block5k(w, at, size, flat)
    else:
        unpack_block4k(w, at, size, flat)
