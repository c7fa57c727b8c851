"""The inner loop against NumPy, in every format, and the promise that rows are on their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize

pytest.importorskip("numba")

from few_bits import DIGITS, Numbers, panels_of, some_numbers

from forerun.lean import linear, storage
from forerun.lean.dots import LIMBS_4, LIMBS_8
from forerun.lean.formats import BLOCKS, Format
from forerun.lean.jit import compiled, counted
from forerun.lean.joining import Part, join
from forerun.lean.limbs import FINE
from forerun.lean.linear import Matrices
from forerun.lean.scalar import exp, largest, normalise, total
from forerun.lean.shape import HAS_DOT_PRODUCTS, LANES, TOKENS, is_arm
from forerun.lean.storage import BLOCK, Stored, store, to_panels

DEPTH = 3 * BLOCK
FROM_FILES = (Format.BLOCK6K, Format.BLOCK5K, Format.BLOCK5, Format.BLOCK4K)
"""The formats that only weights in files are kept in."""
STORED = [format for format in Format if format not in FROM_FILES]
CUT_BYTES = FINE.num_bytes


@counted
def panel(m: Matrices, number: int, x: Any, count: int, y: Any) -> None:
    limbs = np.empty((count, x.shape[1] // BLOCK * CUT_BYTES), np.uint8)
    for i in range(count):
        linear.cut(m, 0, x[i], limbs[i])
    linear.panel(m, 0, number, x, count, y, linear.make_work(count, limbs))


@compiled
def exps(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = exp(x[i])


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def half(x: Any) -> Any:
    return x.astype(np.float16).astype(np.float32)


def depth_of(format: Format) -> int:
    return 2 * BLOCKS[format].unit if format in FROM_FILES else DEPTH


def example(format: Format, num_outputs: int) -> Any:
    """A matrix (outputs, depth_of(format)) that the format holds exactly."""
    if format in FROM_FILES:
        return some_numbers(format, num_outputs, 2).matrix()
    if format is Format.FLOAT32:
        return normal(num_outputs, DEPTH)
    if format is Format.FLOAT16:
        return half(normal(num_outputs, DEPTH))
    if format is Format.BFLOAT16:
        bits = normal(num_outputs, DEPTH).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    generator, about = np.random.default_rng(3), BLOCKS[format]
    blocks = (num_outputs, DEPTH // about.inputs)
    d, m = half(generator.random((2, *blocks, 1)) / 50)
    low, high = DIGITS[format]
    q = generator.integers(low, high + 1, (*blocks, about.inputs))
    q[..., 5], q[..., 9] = low, high  # as those who round to a block see to
    m *= generator.choice((-1, 1), m.shape)
    weights = d * q + (m if about.numbers == 2 else 0)
    return weights.astype(np.float32).reshape(num_outputs, DEPTH)


def kept(format: Format, num_outputs: int, copies: int = 1, depth: int = 0) -> Matrices:
    """The first inputs of copies of the example beside each other, as panels."""
    if format in FROM_FILES:
        numbers = some_numbers(format, num_outputs, 2)
        wide = [each if each is None else np.tile(each, (1, copies, 1, 1)) for each in numbers[1:]]
        layout = storage.LAYOUT_4 if BLOCKS[format].bits == 4 else storage.LAYOUT_8
        stored = Stored(format, panels_of(Numbers(format, *wide), layout))
        return matrices(stored, copies * depth_of(format))
    matrix = np.concatenate([example(format, num_outputs)] * copies, axis=1)
    depth = depth or matrix.shape[1]
    stored = store(matrix[:, :depth].copy())
    assert stored.format is format
    return matrices(stored, depth)


@pytest.fixture(autouse=True)
def blocks_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a processor where they do not: the products must be right."""
    monkeypatch.setattr(storage, "BLOCKS_PAY", True)


def matrices(stored: Stored, depth: int) -> Matrices:
    count, size = stored.panels.shape
    return Matrices(
        panels=stored.panels.reshape(-1),
        biases=np.zeros(count * LANES, np.float32),
        format=np.full(count, stored.format, np.int64),
        panel_at=np.arange(count + 1) * size,
        depth=np.array([depth]),
        takes_limbs=np.array([takes_limbs(stored.format)]),
        output_at=np.zeros(1, np.int64),
        has_k_quants=True,  # so that one panel is compiled; without them: test_limbs
        is_coarse=None,
    )


def takes_limbs(format: Format) -> bool:
    return LIMBS_4 if format >= Format.BLOCK4 else LIMBS_8 and format >= Format.BLOCK8


@pytest.mark.parametrize("format", STORED)
def test_a_matrix_is_kept_in_the_fewest_bits_that_hold_it(format: Format) -> None:
    assert store(example(format, LANES + 3)).format is format


def test_blocks_are_used_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "BLOCKS_PAY", False)
    for format in STORED:
        expected = Format.FLOAT32 if format >= Format.BLOCK8 else format
        assert store(example(format, LANES)).format is expected
    monkeypatch.undo()
    assert storage.BLOCKS_PAY is (HAS_DOT_PRODUCTS or not is_arm())


def test_what_almost_fits_a_format_does_not() -> None:
    for format in (Format.BFLOAT16, Format.FLOAT16, Format.BLOCK8, Format.BLOCK4):
        matrix = example(format, LANES).copy()
        matrix[LANES - 1, 40] = np.nextafter(matrix[LANES - 1, 40], np.float32(9))
        assert store(matrix).format is Format.FLOAT32
    assert store(example(Format.BLOCK4, 8)[:, : BLOCK + 1].copy()).format is Format.FLOAT32
    assert store(np.full((4, BLOCK), 1e30, np.float32)).format is Format.FLOAT32
    assert store(np.zeros((4, BLOCK), np.float32)).format is Format.BLOCK4


@pytest.mark.parametrize(
    ("kinds", "format"),
    [
        (["Q8_0"], Format.BLOCK8),
        (["Q5_0"], Format.BLOCK8),
        (["Q5_0", "Q8_0"], Format.BLOCK8),  # as queries and values may be
        (["Q4_1"], Format.BLOCK4),
        (["Q4_0"], Format.BLOCK4),
        (["Q4_0", "Q4_1"], Format.BLOCK4),
    ],
)
def test_what_was_read_from_gguf_is_kept_in_blocks(kinds: list[str], format: Format) -> None:
    parts = [quantize(normal(LANES, DEPTH), GGMLQuantizationType[kind]) for kind in kinds]
    named = zip(parts, kinds, strict=True)
    matrix = np.concatenate([dequantize(part, GGMLQuantizationType[kind]) for part, kind in named])
    matrix[0, :BLOCK] = 0
    stored, x = store(matrix), normal(TOKENS, DEPTH)
    assert stored.format is format
    for number, own in enumerate(np.split(matrix, len(kinds))):
        y = np.zeros((TOKENS, LANES), np.float32)
        panel(matrices(stored, DEPTH), number, x, TOKENS, y)
        assert np.allclose(y, x.astype(np.float64) @ own.T.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("format", Format)
def test_products_have_the_bits_of_float32(format: Format) -> None:
    matrix = example(format, 2 * LANES)
    x = normal(TOKENS, matrix.shape[1])
    own_bits, plain = kept(format, 2 * LANES), matrices(storage.float32(matrix), matrix.shape[1])
    for number in (0, 1):
        y, expected = np.zeros((2, TOKENS, LANES), np.float32)
        panel(own_bits, number, x, TOKENS, y)
        panel(plain, number, x, TOKENS, expected)
        is_close = np.allclose(y, expected, atol=1e-5 if format in STORED else 1e-3)
        assert is_close if takes_limbs(format) else (y == expected).all()
        own = matrix[number * LANES : (number + 1) * LANES]
        exact = x.astype(np.float64) @ own.T.astype(np.float64)
        assert np.allclose(y, exact, atol=1e-4 if format in STORED else 1e-3)


def test_scales_may_be_as_small_as_float16_goes() -> None:
    q = np.random.default_rng(0).integers(-127, 128, (LANES, DEPTH)).astype(np.float32)
    q[:, ::BLOCK] = 127
    matrix, x = q * np.float32(-3 * 2.0**-24), normal(TOKENS, DEPTH)
    y = np.zeros((TOKENS, LANES), np.float32)
    stored = store(matrix)
    assert stored.format is Format.BLOCK8
    panel(matrices(stored, DEPTH), 0, x, TOKENS, y)
    assert np.allclose(y, x @ matrix.T, atol=1e-9, rtol=1e-4)


@pytest.mark.parametrize("num_tokens", [TOKENS + 1, 3 * TOKENS, 5 * TOKENS - 2])
@pytest.mark.parametrize("format", Format)
def test_many_tokens_have_the_bits_of_few(format: Format, num_tokens: int) -> None:
    m = kept(format, LANES, 5, 2 * linear.CHUNK - BLOCK)  # the last chunk may not be whole
    x = normal(num_tokens, int(m.depth[0]))
    y, own = np.zeros((num_tokens, LANES), np.float32), np.zeros((1, LANES), np.float32)
    panel(m, 0, x, num_tokens, y)
    for token in range(num_tokens):
        panel(m, 0, x[token : token + 1], 1, own)
        assert (own[0] == y[token]).all()


@pytest.mark.parametrize("format", [Format.BLOCK8, Format.BLOCK4])
def test_the_largest_products_of_a_block_fit(format: Format) -> None:
    q = np.full((LANES, DEPTH), 127 if format is Format.BLOCK8 else 15, np.float32)
    q[:, ::BLOCK] = 0
    q[:, 1::BLOCK] -= 1  # or it would fit fewer bits
    matrix, x = q / 8, np.full((2, DEPTH), np.nextafter(np.float32(2), np.float32(0)))
    x[1] *= -1
    m, y = matrices(store(matrix), DEPTH), np.zeros((2, LANES), np.float32)
    assert m.format == format
    panel(m, 0, x, 2, y)
    assert np.allclose(y, x @ matrix.T, rtol=1e-6)


@pytest.mark.parametrize("format", [Format.BLOCK8, Format.BLOCK4])
def test_activations_of_any_size(format: Format) -> None:
    m, x = kept(format, LANES), normal(6, DEPTH)
    y = np.zeros((6, LANES), np.float32)
    for scale in (1e-6, 1.0, 1e6, 1e30):
        panel(m, 0, x * np.float32(scale), 6, y)
        expected = np.zeros((6, LANES), np.float32)
        panel(m, 0, x, 6, expected)
        assert np.allclose(y / np.float32(scale), expected, atol=1e-4)
    x[0], x[1], x[2, 40], x[3, 50] = 0, 1e-42, np.nan, np.inf
    panel(m, 0, x, 6, y)
    assert (y[0] == 0).all()
    assert (np.abs(y[1]) < 1e-30).all()
    assert not np.isfinite(y[2:4]).any()
    assert np.isfinite(y[4:]).all()


@pytest.mark.parametrize("depth", [1, 7, 33])
def test_any_number_of_inputs(depth: int) -> None:
    matrix, x = normal(LANES, depth), normal(TOKENS, depth)
    y = np.zeros((TOKENS, LANES), np.float32)
    panel(matrices(store(matrix), depth), 0, x, TOKENS, y)
    assert np.allclose(y, x @ matrix.T, atol=1e-5)


@pytest.mark.parametrize("format", Format)
def test_a_row_has_the_same_bits_in_every_company(format: Format) -> None:
    m, x = kept(format, LANES), normal(TOKENS, depth_of(format))
    together = np.zeros((TOKENS, LANES), np.float32)
    panel(m, 0, x, TOKENS, together)
    for count in range(1, TOKENS + 1):
        y = np.full((TOKENS, LANES), 7, np.float32)
        panel(m, 0, x[TOKENS - count :], count, y)
        assert (y[:count] == together[TOKENS - count :]).all()
        assert (y[count:] == 7).all()  # nothing past the rows asked for


def test_rounding_to_8_bits_is_close_and_holds() -> None:
    matrix = normal(LANES, DEPTH)
    near = storage.rounded(matrix)
    assert store(near).format is Format.BLOCK8
    assert 0 < np.abs(near - matrix).max() < np.abs(matrix).max() / 200


def test_panels_hold_the_matrix_transposed() -> None:
    matrix = normal(LANES + 3, 5)
    panels = to_panels(matrix)
    assert panels.shape == (2, 5, LANES)
    assert (panels[0] == matrix[:LANES].T).all()
    assert (panels[1, :, :3] == matrix[LANES:].T).all()
    assert (panels[1, :, 3:] == 0).all()


def test_panels_that_take_turns() -> None:
    gate, up = normal(LANES + 3, 5), normal(LANES + 3, 5) + 9
    biases = [normal(LANES + 3), normal(LANES + 3) - 9]
    m = join([Part([gate, up], biases, takes_turns=True)])
    panels = m.panels.view(np.float32).reshape(4, 5, LANES)
    for number, matrix in enumerate((gate, up)):
        assert (panels[number] == matrix[:LANES].T).all()
        assert (panels[2 + number, :, :3] == matrix[LANES:].T).all()
        own = m.biases.reshape(4, LANES)[[number, 2 + number]].reshape(-1)
        assert (own == [*biases[number], *[0.0] * (LANES - 3)]).all()


def test_exp() -> None:
    x = np.linspace(-86, 88, 100_001, dtype=np.float32)
    y = np.empty_like(x)
    exps(x, y)
    assert np.abs(y / np.exp(x.astype(np.float64)) - 1).max() < 2e-7
    far = np.array([-1e30, -200, 200], np.float32)
    exps(far, y)
    assert y[0] == y[1] < 1e-37
    assert np.isfinite(y[2])


def test_reductions_and_norm() -> None:
    x, weight = normal(77), normal(77)
    assert largest(x, 50) == x[:50].max()
    assert total(x, 50) == pytest.approx(float(x[:50].sum()), abs=1e-5)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-5) * weight
    normalise(x, weight, np.float32(1e-5), x)
    assert np.allclose(x, expected, atol=1e-5)
