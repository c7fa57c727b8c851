"""Every processor's instructions for products of bytes, in its own layout, played on this one."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from few_bits import DIGITS, Numbers, panels_of, some_numbers
from llvmlite import binding, ir
from numba import config

from forerun.lean import limb_tile, shape, storage
from forerun.lean.dots import DOTS, KINDS, MADD_256, MADD_512, SDOT, VNNI_256, VNNI_512, Dots, plain
from forerun.lean.formats import BLOCK, BLOCKS, Format
from forerun.lean.jit import counted
from forerun.lean.limb_tile import multiply_limbs_by
from forerun.lean.limbs import Cut, cut_block_by
from forerun.lean.shape import HAS_DOT_PRODUCTS, LANES
from forerun.lean.storage import layout_for

TOKENS = 5  # makes groups of one, two and three
BLOCK_FORMATS = tuple(BLOCKS)
STORED = (Format.BLOCK8, Format.BLOCK4)  # in which float32 weights are kept, too
PLAYED = [
    pytest.param(kind, marks=() if kind in (Format.BLOCK8, Format.BLOCK4) else pytest.mark.slow)
    for kind in BLOCK_FORMATS  # the others differ from these in headers and in sums
]

Product = Callable[[Any, Any, int], Any]


@cache
def product_by(format: Format, dots: Dots, num_limbs: int = 3) -> Product:
    """A function that multiplies a matrix (LANES, inputs), or its numbers, with the first tokens of
    x."""
    cut = Cut(dots, num_limbs)
    multiply, cut_block, size = multiply_limbs_by(format, cut), cut_block_by(cut), cut.num_bytes

    @counted
    def run(panels: Any, x: Any, count: int, y: Any) -> None:
        blocks = x.shape[1] // BLOCK
        limbs = np.empty((count, blocks * size), np.uint8)
        for i in range(count):
            for block in range(blocks):
                cut_block(x[i], block * BLOCK, limbs[i], block * size)
        multiply(limbs, 0, limbs.shape[1], panels, 0, blocks, y, 0, LANES, count)

    def product(matrix: Any, x: Any, count: int) -> Any:
        if isinstance(matrix, Numbers):
            panels = panels_of(matrix, layout_for(dots))
        else:
            stored = getattr(storage, format.name.lower())(matrix, layout_for(dots))
            assert stored is not None
            panels = stored.panels
        y = np.full((len(x), LANES), 7, np.float32)
        run(panels.reshape(-1), x, count, y)
        return y

    return product


def small(dots: Dots) -> Dots:
    """For small tiles, which compile sooner."""
    return dots._replace(most_tokens=TOKENS)


REFERENCE = small(plain(SDOT))
PAIRS = plain(VNNI_256)._replace(name="plain_pairs", strips=2, abreast=2)


def kinds_for(format: Format) -> list[Dots]:
    """This processor's, and those of others in plain instructions; one takes strips in pairs."""
    kinds = [DOTS] if HAS_DOT_PRODUCTS else []
    if format in (Format.BLOCK4K, Format.BLOCK5K, Format.BLOCK5):  # of which only headers differ
        kinds += map(plain, (SDOT, VNNI_256, MADD_256))
    else:
        kinds += [*map(plain, (SDOT, VNNI_512, VNNI_256, MADD_256)), PAIRS]
    return [small(dots) for dots in kinds if not (dots.is_narrow and format < Format.BLOCK4)]


def example(format: Format, num_units: int) -> Any:
    """A matrix (LANES, inputs) whose blocks reach both ends of a format, or its numbers."""
    if format not in STORED:
        return some_numbers(format, LANES, num_units)
    generator = np.random.default_rng(8)
    low, high = DIGITS[format]
    size, count, *_ = BLOCKS[format]
    blocks = (LANES, num_units)
    q = generator.integers(low, high + 1, (*blocks, size)).astype(np.float32)
    q[..., 2], q[..., 14] = low, high
    d = (1 + generator.integers(0, 9, (*blocks, 1))).astype(np.float32) / 64
    m = generator.integers(-9, 9, (*blocks, 1)) if count == 2 else 0
    return (d * q + m).astype(np.float32).reshape(LANES, -1)


def matrix_of(example: Any) -> Any:
    return example.matrix() if isinstance(example, Numbers) else example


def defined(numbers: Numbers, x: Any) -> Any:
    """The product as `limb_tile` defines it, rounding by rounding."""
    inputs, (d, m) = BLOCKS[numbers.format].inputs, numbers.blocks()
    d, m, q = (each.reshape(LANES, -1, each.shape[3]) for each in (d, m, numbers.q))
    total = np.zeros((len(x), LANES), np.float32)
    for block in range(q.shape[1]):
        begin = block * inputs // BLOCK * BLOCK
        cut = x[:, begin : begin + BLOCK].astype(np.float64)
        _, exponent = np.frexp(np.abs(cut).max(1, keepdims=True))
        scale = 2.0 ** (exponent - 22.0)
        whole = np.rint(cut / scale)
        own = whole[:, block * inputs - begin :][:, :inputs]
        product = (own @ q[:, block].T.astype(np.float64)).astype(np.float32) * d[:, block].T
        if numbers.m is not None:
            sums = whole.sum(1, keepdims=True).astype(np.float32).astype(np.longdouble)
            product = (sums * m[:, block].T + product).astype(np.float32)
        total = (product * scale + total).astype(np.float32)
    return total


@pytest.mark.parametrize(
    ("dots", "format"),
    [
        (SDOT, Format.BLOCK8),
        (VNNI_512, Format.BLOCK4),
        pytest.param(SDOT, Format.BLOCK4, marks=pytest.mark.slow),  # a loop of the other two
        pytest.param(VNNI_512, Format.BLOCK8, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_largest_tiles_give_each_token_its_own_bits(dots: Dots, format: Format) -> None:
    """ARM's have the most tokens, in groups of up to four.  On x86 a tile of 512 bits adds up the
    limbs of few tokens side by side and those of many in turn."""
    matrix, most = example(format, 2), dots.most_tokens
    x = np.random.default_rng(10).normal(size=(most, 2 * BLOCK)).astype(np.float32)
    product = product_by(format, plain(dots))
    alone = np.concatenate([product(matrix, x[i : i + 1], 1) for i in range(most)])
    for count in range(TOKENS + 1, most + 1):
        np.testing.assert_array_equal(product(matrix, x, count)[:count], alone[:count])


@pytest.mark.parametrize("format", PLAYED)
def test_all_processors_give_the_same_bits(format: Format) -> None:
    matrix = example(format, 3)
    weights = matrix_of(matrix)
    x = np.random.default_rng(9).normal(size=(TOKENS, weights.shape[1])).astype(np.float32)
    x *= np.float32(10) ** np.arange(-2, TOKENS - 2, dtype=np.float32)[:, None]
    x[:, 5] = -x[:, 6] * 40
    expected = product_by(format, REFERENCE)(matrix, x, TOKENS)
    if format in STORED:
        exact = x.astype(np.float64) @ weights.T.astype(np.float64)
        largest = np.abs(x).reshape(TOKENS, 3, BLOCK).max(2).repeat(BLOCK, 1)
        cut, rounded = 2.0**-22 * largest, 2.0**-21 * np.abs(x)  # half a last bit; some roundings
        assert (np.abs(expected - exact) < (cut + rounded) @ np.abs(weights).T).all()
    else:
        np.testing.assert_array_equal(expected, defined(matrix, x))
    for dots in kinds_for(format):
        for count in range(1, TOKENS + 1):
            y = product_by(format, dots)(matrix, x, count)
            assert (y[:count] == expected[:count]).all(), dots.name
            assert (y[count:] == 7).all(), dots.name  # nothing past the tokens asked for


@pytest.mark.parametrize(
    "format", [Format.BLOCK8, pytest.param(Format.BLOCK4, marks=pytest.mark.slow)]
)
def test_one_limb_is_coarse_and_the_same_everywhere(format: Format) -> None:
    matrix = example(format, 3)
    x = np.random.default_rng(9).normal(size=(TOKENS, 3 * BLOCK)).astype(np.float32)
    x[:, 7], x[:, 40] = 3.9999, -4.0  # rounds to 128 of 128, and just does not
    exact = x.astype(np.float64) @ matrix.T.astype(np.float64)
    largest = np.abs(x).reshape(TOKENS, 3, BLOCK).max(2).repeat(BLOCK, 1)
    expected = product_by(format, REFERENCE, 1)(matrix, x, TOKENS)
    assert (np.abs(expected - exact) < 2.0**-7 * largest @ np.abs(matrix).T).all()
    for dots in kinds_for(format):
        for count in range(1, TOKENS + 1):
            y = product_by(format, dots, 1)(matrix, x, count)
            assert (y[:count] == expected[:count]).all(), dots.name
            assert (y[count:] == 7).all(), dots.name


@pytest.mark.parametrize("number", [0x3E7F80, -0x3F8080, 0x3F7F7F, -0x400000, 0.25 - 0x400000])
@pytest.mark.parametrize("format", PLAYED)
def test_no_limbs_overflow_a_sum(format: Format, number: float) -> None:
    """Activations whose two lower limbs are all -128 or all 127, and the largest of all."""
    unit = BLOCKS[format].unit
    x = np.full((1, unit), number / 2**22, np.float32)
    for sign in (1, -1):
        if format in STORED:
            q = np.full((LANES, unit), max(map(abs, DIGITS[format])), np.float32)
            q[:, 0], q[:, 1] = 0, q[:, 1] - 1  # or it would fit fewer bits
            matrix = sign * q / 8
            exact = x.astype(np.float64) @ matrix.T.astype(np.float64)
        else:
            matrix, x = some_numbers(format, LANES, 1), -x
            matrix.q[:] = max(DIGITS[format], key=abs)
            exact = defined(matrix, x)
        for dots in kinds_for(format):
            y = product_by(format, dots)(matrix, x, 1)
            assert np.allclose(y[:1], exact, rtol=1e-7, atol=0), dots.name


@pytest.mark.parametrize("format", PLAYED)
def test_what_is_not_finite_stays_so(format: Format) -> None:
    matrix = example(format, 2)
    x = np.ones((3, matrix_of(matrix).shape[1]), np.float32)
    x[0, 3], x[1, 40] = np.nan, -np.inf
    for dots in kinds_for(format):
        y = product_by(format, dots)(matrix, x, 3)
        assert not np.isfinite(y[:2]).any(), dots.name
        assert np.isfinite(y[2]).all(), dots.name


PROCESSORS = {
    SDOT: ("aarch64", "neoverse-n1", {"sdot": 8}),
    VNNI_512: ("x86_64", "icelake-server", {"vpdpbusd": 8}),
    VNNI_256: ("x86_64", "alderlake", {"vpdpbusd": 8}),
    MADD_512: ("x86_64", "skylake-avx512", {"vpmaddubsw": 8, "vpmaddwd": 1}),
    MADD_256: ("x86_64", "haswell", {"vpmaddubsw": 8, "vpmaddwd": 1}),
}
"""A machine, a processor of it, and the instructions that 32 inputs take for each limb."""
COMPILED = [
    pytest.param(num_limbs, format, dots, id=f"{dots.name}, {format.name}, {num_limbs}")
    for num_limbs in (3, 1)
    for format in (BLOCK_FORMATS if num_limbs == 3 else (Format.BLOCK8, Format.BLOCK4))
    for dots in PROCESSORS
    if not dots.is_narrow or format >= Format.BLOCK4  # others are multiplied as floats there
]


@pytest.mark.parametrize(("num_limbs", "format", "dots"), COMPILED)
def test_32_inputs_take_so_many_instructions(
    num_limbs: int, format: Format, dots: Dots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight for each limb, and those that join: compiled for that processor, not run."""
    machine, processor, instructions = PROCESSORS[dots]
    monkeypatch.setattr(limb_tile, "LANES", dots.sums * dots.strips)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = f"{machine}-unknown-linux-gnu"
    try:
        target = binding.Target.from_triple(module.triple)
    except RuntimeError:
        pytest.skip("this LLVM does not compile for that processor")
    cut = Cut(dots._replace(most_tokens=1), num_limbs)
    limb_tile.define(module, format, cut).linkage = "external"
    compiled = binding.parse_assembly(str(module))
    text = target.create_target_machine(cpu=processor, opt=3).emit_assembly(compiled)
    for name, count in instructions.items():
        assert len(re.findall(rf"\b{name}\b", text)) == count * num_limbs * dots.strips
    if dots is VNNI_512:  # one read of four inputs serves both strips
        assert 8 * num_limbs <= text.count("vpbroadcastd") < 16 * num_limbs


HASWELL = "+sse4.2,+avx,+avx2,+fma,+f16c"
SKYLAKE = f"{HASWELL},+avx512f,+avx512bw,+avx512vl"


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (f"{SKYLAKE},+avx512vnni,+avxvnni", "vnni512"),
        (f"{SKYLAKE},+avx512vnni", "vnni512"),
        (f"{HASWELL},+avxvnni", "vnni256"),
        (f"{HASWELL},-avx512vnni,-avx512f,+avxvnni", "vnni256"),
        (SKYLAKE, "madd512"),
        (f"{HASWELL},+avx512f,-avx512bw", "madd256"),
        (HASWELL, "madd256"),
        ("+sse4.2,+avx,+f16c", ""),
        ("", ""),
    ],
)
def test_x86_takes_the_best_it_has(
    features: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORERUN_DOT_PRODUCTS", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shape, "known_features", lambda: features)
    assert shape.dot_products() == expected
    assert not expected or not KINDS[expected].is_signed
    monkeypatch.setenv("FORERUN_DOT_PRODUCTS", "0")
    assert shape.dot_products() == ""


@pytest.mark.parametrize(
    ("machine", "system", "features", "override", "expected"),
    [
        ("aarch64", "Linux", "fp asimd asimddp", None, "sdot"),
        ("aarch64", "Linux", "fp asimd asimddp", "1", "sdot"),
        ("aarch64", "Linux", "fp asimd asimddp", "0", ""),
        ("aarch64", "Linux", "fp asimd asimddphp", None, ""),
        ("aarch64", "Linux", None, None, ""),
        ("arm64", "Darwin", None, None, "sdot"),
        ("arm64", "Darwin", None, "0", ""),
        ("x86_64", "Linux", "asimddp", None, ""),
    ],
)
def test_an_arm_system_is_asked(
    machine: str,
    system: str,
    features: str | None,
    override: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(path: Path) -> str:
        assert path == Path("/proc/cpuinfo")
        if features is None:
            raise FileNotFoundError
        return f"processor : 0\nFeatures : {features}\n"

    monkeypatch.delenv("FORERUN_DOT_PRODUCTS", raising=False)
    if override is not None:
        monkeypatch.setenv("FORERUN_DOT_PRODUCTS", override)
    monkeypatch.setattr(config, "CPU_FEATURES", None)
    monkeypatch.setattr(shape, "known_features", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(Path, "read_text", read)
    assert shape.dot_products() == expected


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("aarch64", "+neon", ""),
        ("aarch64", "+neon,+dotprod", "sdot"),
        ("x86_64", HASWELL, "madd256"),
        ("x86_64", "+avx", ""),
    ],
)
def test_features_that_a_user_withholds_are_not_used(
    machine: str, features: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORERUN_DOT_PRODUCTS", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert shape.dot_products() == expected
