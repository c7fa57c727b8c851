"""Linear layers for few tokens: each weight is read once and meets every token of the pass.

A matrix (out, in) is stored as panels of LANES outputs, (out / LANES, in, LANES), so that the
inner loop runs over memory in order and over outputs in vectors.  More tokens than one tile holds
meet a panel tile by tile while it is in the cache, so a long prompt takes the same path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import compiled
from forerun.lean.scalar import exp
from forerun.lean.tile import LANES, TOKENS, multiply

Floats = NDArray[np.float32]


class Matrices(NamedTuple):
    """All matrices of a model one after the other: layer by layer in the order they are used."""

    panels: NDArray[Any]  # float32, or int8 to be multiplied by the scales
    scales: Floats  # per output
    biases: Floats
    panel_at: NDArray[np.int64]  # (matrices,): where each begins in panels
    output_at: NDArray[np.int64]  # (matrices,): and in scales and biases
    depth: NDArray[np.int64]  # (matrices,): number of inputs


def padded(count: int) -> int:
    """The next multiple of LANES."""
    return -(-count // LANES) * LANES


def to_panels(matrix: NDArray[Any]) -> NDArray[Any]:
    """(out, in) as panels (out / LANES, in, LANES); missing outputs are zero."""
    out, depth = matrix.shape
    full = np.zeros((padded(out), depth), matrix.dtype)
    full[:out] = matrix
    return np.ascontiguousarray(full.reshape(-1, LANES, depth).transpose(0, 2, 1))


def alternate(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Two matrices of one shape as one whose panels take turns, so that a panel of the first and
    its counterpart are read together."""
    blocks = []
    for matrix in (first, second):
        full = np.zeros((padded(len(matrix)), *matrix.shape[1:]), matrix.dtype)
        full[: len(matrix)] = matrix
        blocks.append(full.reshape(-1, LANES, *matrix.shape[1:]))
    return np.stack(blocks, axis=1).reshape(-1, *first.shape[1:])


@compiled
def num_panels(outputs: Floats) -> Any:
    """How many panels make outputs (tokens, width)."""
    return (outputs.shape[1] + LANES - 1) // LANES


@compiled
def panel(
    m: Matrices, index: int, number: int, x: Floats, first: int, count: int, sums: Floats
) -> None:
    """Unscaled outputs of one panel for `count` tokens from `first` on: sums (TOKENS, LANES)."""
    depth = m.depth[index]
    begin = m.panel_at[index] + number * depth * LANES
    multiply(x, first * depth, depth, m.panels, begin, LANES, depth, sums, 0, LANES, count)


@compiled
def project(
    m: Matrices, index: int, number: int, x: Floats, places: NDArray[np.int64], y: Floats,
    sums: Floats,
) -> None:  # fmt: skip
    """y[places[i]] (outputs,) = W x[i] + b, for one panel."""
    begin, end = number * LANES, min((number + 1) * LANES, y.shape[1])
    scales, biases = epilogue(m, index, number)
    for first in range(0, len(places), TOKENS):
        count = min(TOKENS, len(places) - first)
        panel(m, index, number, x, first, count, sums)
        for i in range(count):
            out, own = y[places[first + i], begin:end], sums[i]
            for j in range(end - begin):
                out[j] = own[j] * scales[j] + biases[j]


@compiled
def project_onto(
    m: Matrices, index: int, number: int, x: Floats, num_tokens: int, y: Floats, sums: Floats
) -> None:
    """y (tokens, outputs) += W x + b, for one panel."""
    begin, end = number * LANES, min((number + 1) * LANES, y.shape[1])
    scales, biases = epilogue(m, index, number)
    for first in range(0, num_tokens, TOKENS):
        count = min(TOKENS, num_tokens - first)
        panel(m, index, number, x, first, count, sums)
        for i in range(count):
            out, own = y[first + i, begin:end], sums[i]
            for j in range(end - begin):
                out[j] += own[j] * scales[j] + biases[j]


@compiled
def project_gated(
    m: Matrices, index: int, number: int, x: Floats, num_tokens: int, y: Floats, sums: Floats,
    gates: Floats,
) -> None:  # fmt: skip
    """y (tokens, outputs) = silu(G x) * (U x), for one panel of each."""
    begin, end = number * LANES, min((number + 1) * LANES, y.shape[1])
    gate_scales, gate_biases = epilogue(m, index, 2 * number)
    scales, biases = epilogue(m, index, 2 * number + 1)
    for first in range(0, num_tokens, TOKENS):
        count = min(TOKENS, num_tokens - first)
        panel(m, index, 2 * number, x, first, count, gates)
        panel(m, index, 2 * number + 1, x, first, count, sums)
        for i in range(count):
            out, own, gate = y[first + i, begin:end], sums[i], gates[i]
            for j in range(end - begin):
                g = gate[j] * gate_scales[j] + gate_biases[j]
                out[j] = (own[j] * scales[j] + biases[j]) * g / (np.float32(1) + exp(-g))


@compiled
def epilogue(m: Matrices, index: int, number: int) -> tuple[Floats, Floats]:
    """Scales and biases of one panel."""
    at = m.output_at[index] + number * LANES
    return m.scales[at : at + LANES], m.biases[at : at + LANES]
