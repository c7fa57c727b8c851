"""Philox-4x32-10 against its published vectors, in every library and in plain integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.noise.philox import philox, philox_one, round_keys, word_dtype
from libraries import Library

ONES = 0xFFFFFFFF
PUBLISHED = [  # counter, key, words: the "known answers" that come with Random123
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),  # digits of pi
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(lib: Library, values: Any) -> Any:
    return lib.xp.asarray([int(value) for value in values], dtype=word_dtype(lib.xp))


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_published_vectors(
    lib: Library, counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    keys = round_keys(lib.xp, words(lib, key[:1]), words(lib, key[1:]))
    found = philox(lib.xp, tuple(words(lib, [word]) for word in counter), keys)
    assert tuple(int(word[0]) for word in found) == expected


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_published_vectors_in_plain_integers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox_one(counter, key) == expected


def test_arrays_and_plain_integers_agree(lib: Library) -> None:
    """Carries of the wide product show only for some words, so many are tried, extremes too."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 1 << 32, (6, 500))
    columns[:, :64] = rng.choice([0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, ONES], (6, 64))
    *counter, low, high = (words(lib, column) for column in columns)
    found = philox(lib.xp, tuple(counter), round_keys(lib.xp, low, high))
    for index, (c0, c1, c2, c3, k0, k1) in enumerate(columns.T.tolist()):
        assert tuple(int(word[index]) for word in found) == philox_one((c0, c1, c2, c3), (k0, k1))


def test_counters_and_keys_broadcast(lib: Library) -> None:
    """A batch of rows with keys of their own gives what each row gives alone."""
    keys = round_keys(lib.xp, words(lib, [5, 6]), words(lib, [7, 8]))[:, :, :, None]
    index, position = words(lib, range(3))[None, :], words(lib, [10, 11])[:, None]
    found = philox(lib.xp, (index, position, position * 0, index * 0), keys)
    for row, column in np.ndindex(2, 3):
        expected = philox_one((column, 10 + row, 0, 0), (5 + row, 7 + row))
        assert tuple(int(word[row, column]) for word in found) == expected
