"""The few operations the array standard lacks, against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest

from cases import for_all
from forerun.base import arrays
from forerun.base.arrays import BLOCK, to_numpy
from forerun.base.errors import InputError
from libraries import Library

RNG = np.random.default_rng(0)


@for_all("width", [1, 5, 255, 256, 257, 700, 1024])
def test_blocks(lib: Library, width: int) -> None:
    """Sums and maxima of each block; the last block may be short."""
    table = RNG.random((3, width)).astype(np.float32)
    starts = range(0, width, BLOCK)
    sums = np.stack([table[:, s : s + BLOCK].sum(axis=1) for s in starts], axis=1)
    assert to_numpy(arrays.sum_blocks(lib.xp, lib.array(table))) == pytest.approx(sums, rel=1e-5)
    columns, values = arrays.argmax_blocks(lib.xp, lib.array(table))
    best = np.stack([s + table[:, s : s + BLOCK].argmax(axis=1) for s in starts], axis=1)
    assert np.array_equal(to_numpy(columns), best)
    assert np.array_equal(to_numpy(values), np.take_along_axis(table, best, axis=1))


@for_all("width", [100, 256, 300, 512])
def test_taking_blocks(lib: Library, width: int) -> None:
    """Columns past the end have value 0 and never an id outside the vocabulary."""
    table = RNG.random((2, width))
    last = -(-width // BLOCK) - 1
    tokens, values = arrays.take_blocks(
        lib.xp, lib.array(table), lib.array([1, 0, 1]), lib.array([0, last, last])
    )
    padded = np.pad(table, ((0, 0), (0, (last + 1) * BLOCK - width))).reshape(2, -1, BLOCK)
    expected = padded[[1, 0, 1], [0, last, last]]
    assert to_numpy(values) == pytest.approx(expected, rel=1e-6)
    assert int(lib.xp.max(tokens)) == width - 1
    inside = expected > 0
    read = np.take_along_axis(table[[1, 0, 1]], to_numpy(tokens), axis=1)
    assert np.array_equal(inside * read, expected)


def test_scattering_and_replacing_rows(lib: Library) -> None:
    ids, values = np.array([[3, 0], [1, 2]]), np.array([[0.25, 0.75], [0.5, 0.5]])
    found = arrays.scatter_rows(lib.xp, lib.array(ids), lib.array(values), 5)
    assert to_numpy(found).tolist() == [[0.75, 0, 0, 0.25, 0], [0, 0.5, 0.5, 0, 0]]
    mask, rest = np.array([True, False, True]), np.zeros((3, 2))
    new = lib.array(np.array([[1.0, 2.0], [3.0, 4.0]]))
    found = arrays.put_rows(lib.xp, lib.array(mask), new, lib.array(rest))
    assert to_numpy(found).tolist() == [[1, 2], [0, 0], [3, 4]]


def test_positive_part(lib: Library) -> None:
    found = arrays.positive_part(lib.xp, lib.array(np.array([[-1.0, 0.0, 2.0]])))
    assert to_numpy(found).tolist() == [[0, 0, 2]]


def test_sums_of_rows_pass_on_what_is_not_finite(lib: Library) -> None:
    """A check of a row's sum relies on it."""
    table = np.ones((3, 300), dtype=np.float32)
    table[1, 7], table[2, 8] = np.nan, np.inf
    found = to_numpy(arrays.sum_rows(lib.xp, lib.array(table)))
    assert found[0] == 300
    assert np.isnan(found[1])
    assert np.isinf(found[2])


def test_half_precision_is_told_apart(lib: Library) -> None:
    assert not arrays.is_half(lib.array([1.0], "float32"))
    if lib.name != "strict":  # the standard has no half types
        assert arrays.is_half(lib.array([1.0], "float16"))
        assert "float32" in str(arrays.upcast(lib.xp, lib.array([1.0], "float16")).dtype)


def test_one_library_and_one_device() -> None:
    assert arrays.namespace_of(a=None, b=[1, 2]) is arrays.namespace_of(a=np.empty(0))
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"mixed.*a: numpy, b: torch.*one library"):
        arrays.namespace_of(a=np.empty(1), b=torch.empty(1))
    with pytest.raises(InputError, match=r"different devices.*a: cpu, b: meta"):
        arrays.device_of(a=torch.empty(1), b=torch.empty(1, device="meta"))
    assert arrays.to_numpy(torch.tensor([1.5]).bfloat16()).tolist() == [1.5]
    assert arrays.to_numpy(torch.ones(1, requires_grad=True)).tolist() == [1.0]
