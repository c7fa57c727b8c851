"""A row's beginning copied out and in: the state is that of having read it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import Architecture, random_tokens

pytest.importorskip("numba")

from forerun.lean.attention import PAGE
from forerun.lean.model import LeanModel
from forerun.lean.pages import Page
from forerun.lean.shape import LANES


def by_slot(page: Page) -> NDArray[np.float32]:
    """Keys (layers, heads, PAGE, head size)."""
    keys = page.keys.swapaxes(3, 4)
    return keys.reshape(*keys.shape[:2], PAGE, -1)


@pytest.mark.parametrize("count", [1, LANES - 1, LANES, LANES + 1, 3 * LANES - 2])
def test_a_row_goes_on_from_a_copy_as_from_reading(count: int) -> None:
    model = LeanModel(Architecture("llama", "", dtype=torch.float32).build(), num_threads=1)
    generator = random.Random(count)
    text, other = random_tokens(generator, count + 4), random_tokens(generator, 3)
    read, copied = model.start(1, 120), model.start(3, 120)
    for state in (read, copied):
        model.watch(state, [0, 2])
    model.score(copied, [1], [other], [1])  # a neighbour, in a cache that is still small
    model.commit(copied, [1], [3])
    model.score(read, [0], [text], [4])
    begun = read.copy_out(0, count)
    assert begun.tokens == text[:count]
    pages = read._pages.of_row(0, count + 4)
    assert begun.num_bytes == len(begun.pages) * pages[0].numbers.nbytes + begun.states.nbytes
    copied.copy_in(2, begun)
    logits = [model.score(state, [row], [text], [4])[0] for state, row in ((read, 0), (copied, 2))]
    assert torch.equal(*logits)
    for begin, ours, theirs in zip(
        range(0, count + 4, PAGE), copied._pages.of_row(2, count + 4), pages, strict=True
    ):
        slots = slice(min(PAGE, count + 4 - begin))  # the others were never written to
        assert np.array_equal(by_slot(ours)[:, :, slots], by_slot(theirs)[:, :, slots])
        assert np.array_equal(ours.values[:, :, :, slots], theirs.values[:, :, :, slots])
    model.commit(read, [0], [count + 2])
    model.commit(copied, [2], [count + 2])
    assert torch.equal(model.watched(read, 0), model.watched(copied, 2))
    read.release(0)
    model.score(read, [0], [random_tokens(generator, count)], [1])  # writes where it was read
    copied.release(2)
    copied.copy_in(2, begun)
    assert torch.equal(model.score(copied, [2], [text], [4])[0], logits[0])
    alone = model.start(1, 120)
    model.score(alone, [0], [other], [1])
    model.commit(alone, [0], [3])
    went_on = [model.score(state, [row], [[5]], [1]) for state, row in ((alone, 0), (copied, 1))]
    assert torch.equal(*went_on)
