"""Tensors as they lie in a file: panels of them hold the weights that GGUF's own reader finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from tiny_gguf import packed

pytest.importorskip("numba")

from forerun.base.errors import InputError
from forerun.gguf.file import SERVED
from forerun.lean import blocks
from forerun.lean.blocks import TYPES, Raw, are_finite, pack_rows, panel_bytes, widened
from forerun.lean.dots import LIMBS_8
from forerun.lean.formats import BLOCKS, INPUTS_PER_ROW, ZERO_6K, Format
from forerun.lean.joining import Part, join
from forerun.lean.shape import LANES
from forerun.lean.storage import LAYOUT_4, LAYOUT_8

DEPTH, OUTPUTS = 512, 2 * LANES + 5
IN_BLOCKS = [name for name, about in TYPES.items() if about.format in BLOCKS]


def tensor(kind: str, num_outputs: int = OUTPUTS) -> tuple[Any, Any]:
    """The bytes (outputs, bytes) of a tensor, and its values (outputs, DEPTH)."""
    name = GGMLQuantizationType[kind]
    numbers = np.random.default_rng(2).normal(size=(num_outputs, DEPTH)).astype(np.float32)
    data = np.ascontiguousarray(packed(numbers, name)).view(np.uint8).reshape(num_outputs, -1)
    return data, np.asarray(dequantize(data, name), np.float32).reshape(num_outputs, DEPTH)


def unpacked(panels: Any, format: Format) -> Any:
    """The matrix that panels hold, read as `formats` and `limb_tile` describe them."""
    about = BLOCKS[format]
    lanes, side, *_, is_offset = LAYOUT_4 if about.bits == 4 else LAYOUT_8
    units = panels.reshape(-1, DEPTH // about.unit, about.num_bytes * lanes)

    def part(begin: int, count: int, kind: Any) -> Any:
        """(strips, units, count, lanes) numbers from a byte of each output on."""
        size = np.dtype(kind).itemsize * count * lanes
        own = np.ascontiguousarray(units[:, :, begin * lanes : begin * lanes + size])
        return own.view(kind).reshape(*units.shape[:2], count, lanes).astype(np.float32)

    numbers = part(0, about.numbers, np.float16)
    if about.blocks > 1:
        scales = part(about.scales_at, about.blocks * about.numbers, np.int8)
        scales = scales.reshape(*units.shape[:2], about.blocks, about.numbers, lanes)
        if format is Format.BLOCK6K:
            bits = part(2, 1, np.uint16).astype(np.int64)[:, :, :, None]
            scales *= np.where(bits >> np.arange(about.blocks)[:, None, None] & 1, 32, 1)
        numbers = numbers[:, :, None] * scales
    numbers = numbers.reshape(*units.shape[:2], about.blocks, about.numbers, lanes)
    chunk = about.inputs if side == 4 else INPUTS_PER_ROW[format]
    rows = units[:, :, about.header * lanes :]
    rows = rows.reshape(*units.shape[:2], about.blocks, about.inputs // chunk, -1, lanes, side)
    if about.bits < 8:
        low, above = (
            (rows, None) if about.bits == 4 else (rows[..., :-1, :, :], rows[..., -1:, :, :])
        )
        q = np.concatenate([low & 15, low >> 4], 4)
        if above is not None:
            moves = (about.bits - 4) * np.arange(chunk // side, dtype=np.uint8)[:, None, None]
            q |= (above >> moves & (1 << about.bits - 4) - 1) << 4
        rows = q
    elif format is Format.BLOCK8:
        rows = (rows ^ np.uint8(128 if is_offset else 0)).view(np.int8)
    q = rows.astype(np.float32) - (ZERO_6K if format is Format.BLOCK6K else 0)
    weights = q * numbers[:, :, :, 0, None, None, :, None]
    if about.numbers == 2:
        weights += numbers[:, :, :, 1, None, None, :, None]
    return weights.transpose(0, 5, 1, 2, 3, 4, 6).reshape(-1, DEPTH)


def panels_of(data: Any, kind: str) -> Any:
    format = TYPES[kind].format
    assert format is not None
    size = panel_bytes(format, DEPTH)
    out = np.full(-(-len(data) // LANES) * size, 77, np.uint8)
    assert pack_rows(data, kind, out, np.arange(len(out) // size) * size)
    return out


def test_all_types_that_are_read_are_known() -> None:
    assert set(TYPES) == set(SERVED)
    for name, about in TYPES.items():
        assert GGMLQuantizationType[name].value == about.number


@pytest.mark.parametrize("kind", TYPES)
def test_values_are_those_of_the_file(kind: str) -> None:
    data, values = tensor(kind)
    np.testing.assert_array_equal(widened(data, kind), values)


@pytest.mark.parametrize("kind", TYPES)
def test_scales_and_offsets_tell_whether_all_numbers_are_finite(kind: str) -> None:
    units = np.random.default_rng(0).integers(256, size=(1500, TYPES[kind].num_bytes), dtype="u1")
    expected = [bool(np.isfinite(widened(unit[None], kind)).all()) for unit in units]
    assert len(set(expected)) == 2
    assert [are_finite(unit[None], kind) for unit in units] == expected


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_panels_hold_every_weight(kind: str) -> None:
    data, values = tensor(kind)
    found = unpacked(panels_of(data, kind), BLOCKS_OF[kind])
    np.testing.assert_array_equal(found[:OUTPUTS], values)
    assert not found[OUTPUTS:].any()


BLOCKS_OF: dict[str, Any] = {name: TYPES[name].format for name in IN_BLOCKS}


def test_sixteen_of_the_least_number_become_minus_ones() -> None:
    """Their products with limbs would not fit a sum."""
    data, _ = tensor("Q6_K")
    data[0, :192] = 0
    values = np.asarray(dequantize(data, GGMLQuantizationType.Q6_K))
    panels = panels_of(data, "Q6_K")
    np.testing.assert_array_equal(unpacked(panels, Format.BLOCK6K)[:OUTPUTS], values)
    lanes = LAYOUT_8.lanes
    bits = panels[2 * lanes : 2 * lanes + 2].view(np.uint16)[0]
    assert bits == (0xFFFF if LIMBS_8 else 0)


@pytest.mark.parametrize("kind", [*IN_BLOCKS, "F16", "BF16"])
@pytest.mark.parametrize("wrong", [0x7F80, 0x7C00, 0xFFFF])
def test_what_is_not_finite_is_told_by_name(kind: str, wrong: int, tmp_path: Path) -> None:
    data, _ = tensor(kind, LANES)
    first = {"Q3_K": 108, "Q6_K": 208}.get(kind, 0)
    data[3, first : first + 2] = np.array([wrong], np.uint16).view(np.uint8)
    is_finite = np.isfinite(dequantize(data, GGMLQuantizationType[kind])).all()
    (tmp_path / "file").write_bytes(data.tobytes())
    raw = Raw("blk.0.w", kind, (LANES, DEPTH), str(tmp_path / "file"), 0)
    parts = [Part([raw], [np.zeros(LANES, np.float32)])]
    if is_finite:
        join(parts)
        return
    with pytest.raises(InputError, match=r"not finite.*blk\.0\.w in .*file"):
        join(parts)


def test_a_scale_without_a_float16_for_its_offset_is_told(tmp_path: Path) -> None:
    data, _ = tensor("Q4_0", LANES)
    data[:, :2] = np.array([60000], np.float16).view(np.uint8)
    out = np.zeros(panel_bytes(Format.BLOCK4, DEPTH), np.uint8)
    assert not pack_rows(data, "Q4_0", out, np.zeros(1, np.int64))


def test_rows_of_heads_are_put_into_transformers_order(tmp_path: Path) -> None:
    values = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    (tmp_path / "file").write_bytes(bytes(4) + values.tobytes())
    raw = Raw("q", "F32", (8, 32), str(tmp_path / "file"), 4, heads=2)
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    np.testing.assert_array_equal(raw.values(0, 8), values[order])
    np.testing.assert_array_equal(raw.values(2, 5), values[order[2:5]])


def test_a_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with pytest.raises(InputError, match=r"became shorter while it was read.*100 bytes"):
        Raw("w", "F32", (8, 32), str(tmp_path / "file"), 0).read(0, 8)


@pytest.mark.parametrize("takes_turns", [False, True])
def test_pieces_of_several_types_are_one_matrix(
    takes_turns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCKS_PAY", True)
    monkeypatch.setattr("forerun.lean.joining.PIECE", 1)  # a panel at a time
    pieces, expected = [], []
    for kind in ("Q4_K", "Q6_K"):
        data, values = tensor(kind, 2 * LANES)
        (tmp_path / kind).write_bytes(data.tobytes())
        pieces.append(Raw(kind, kind, (2 * LANES, DEPTH), str(tmp_path / kind), 0))
        expected.append(values.reshape(2, LANES, DEPTH))
    m = join([Part(pieces, [np.zeros(2 * LANES, np.float32)] * 2, takes_turns)])
    order = [(0, 0), (1, 0), (0, 1), (1, 1)] if takes_turns else [(0, 0), (0, 1), (1, 0), (1, 1)]
    for number, (piece, panel) in enumerate(order):
        bytes_of = m.panels[m.panel_at[number] : m.panel_at[number + 1]]
        found = unpacked(bytes_of, Format(int(m.format[number])))
        np.testing.assert_array_equal(found, expected[piece][panel])
    assert m.has_k_quants is True
