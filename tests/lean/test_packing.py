"""Scales of K-quants, told from weights alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from tiny_gguf import packed

pytest.importorskip("numba")

from forerun.lean import storage
from forerun.lean.formats import BLOCKS, Format
from forerun.lean.packing import find_offsets, find_scales
from forerun.lean.shape import LANES
from forerun.lean.storage import FOR_FLOATS

KINDS = {
    "Q3_K": Format.BLOCK6K,
    "Q4_K": Format.BLOCK4K,
    "Q5_K": Format.BLOCK5K,
    "Q6_K": Format.BLOCK6K,
}


def k_quants(kind: str, num_outputs: int = 4 * LANES) -> Any:
    """A matrix (outputs, 512) of any bytes: scales and offsets from 0 to 63 steps, any q."""
    shape = np.empty((num_outputs, 512), np.float32)
    name = GGMLQuantizationType[kind]
    return np.asarray(dequantize(packed(shape, name), name), np.float32)


def unpacked(stored: storage.Stored, depth: int) -> Any:
    """The matrix (outputs, depth) that panels in the layout for floats hold."""
    inputs, header, size, bits = BLOCKS[stored.format]
    blocks = stored.panels.reshape(len(stored.panels), depth // inputs, -1)
    numbers = np.ascontiguousarray(blocks[..., : header * size * LANES]).view(np.float32)
    numbers = numbers.reshape(*blocks.shape[:2], header, 1, LANES)
    rows = blocks[..., header * size * LANES :].reshape(*blocks.shape[:2], -1, LANES)
    if bits == 4:
        rows = np.stack((rows & 15, rows >> 4), 3).reshape(*blocks.shape[:2], inputs, LANES)
    d, m = numbers[:, :, 0], numbers[:, :, 1] if header == 2 else np.float32(0)
    weights = d * rows.view(np.int8).astype(np.float32) + m
    return weights.transpose(0, 3, 1, 2).reshape(-1, depth)


@pytest.mark.parametrize("kind", KINDS)
def test_k_quants_are_kept_exactly(kind: str) -> None:
    matrix = k_quants(kind)
    stored = getattr(storage, KINDS[kind].name.lower())(matrix, FOR_FLOATS)
    assert stored is not None
    assert (unpacked(stored, matrix.shape[1]) == matrix).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_fewest_bits_are_chosen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "BLOCKS_PAY", True)
    matrix = k_quants(kind)
    assert storage.store(matrix).format is KINDS[kind]
    matrix[-1, -1] = np.nextafter(matrix[-1, -1], np.float32(9))  # in the last block
    assert storage.store(matrix).format is Format.FLOAT32


@pytest.mark.parametrize("q", [(3, 9), (0, 15), (15, 15), (7, 8), (2, 14), (0, 1)])
@pytest.mark.parametrize("offset", [0, 1, 61])
def test_a_block_need_not_use_all_numbers(q: tuple[int, int], offset: int) -> None:
    generator = np.random.default_rng(0)
    scales = generator.uniform(1e-4, 1e-3, (2, 64, 1)).astype(np.float16).astype(np.float32)
    digits = generator.integers(q[0], q[1] + 1, (64, 32)).astype(np.float32)
    matrix = 37 * scales[0] * digits - offset * scales[1]
    d, m = np.empty((2, 64, 1), np.float32)
    assert find_offsets(matrix, 15, d, m)
    found = np.rint((matrix - m) / np.where(d, d, 1))
    assert (found >= 0).all()
    assert (found <= 15).all()
    assert (d * found + m == matrix).all()


@pytest.mark.parametrize("lowest", [0, 1])
def test_an_offset_may_be_a_thousand_scales(lowest: int) -> None:
    """The weights have lost bits of the scale to it."""
    generator = np.random.default_rng(0)
    halves = generator.uniform(1e-3, 2e-3, (2, 300, 1)).astype(np.float16).astype(np.float32)
    d, m = halves * generator.integers(32, 64, halves.shape).astype(np.float32)
    q = generator.integers(lowest, 16, (300, 32)).astype(np.float32)
    found, offsets = np.empty((2, 300, 1), np.float32)
    assert find_offsets(d * q - 1024 * m, 15, found, offsets)


def test_sixteen_of_the_largest_number_become_ones() -> None:
    """Their products with limbs would not fit a sum."""
    d = np.empty((2, 2), np.float32)
    matrix = np.full((2, 32), 32 * 3e-3, np.float32)
    matrix[1, ::2] *= -1
    assert find_scales(matrix, 32, d)
    assert (d == matrix[0, 0]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_what_is_no_k_quant_has_no_scales(value: float) -> None:
    d, m = np.empty((2, 1, 2), np.float32)
    matrix = np.full((1, 64), value, np.float32)
    assert not find_scales(matrix, 32, d)
    assert not find_offsets(matrix, 15, d, m)
