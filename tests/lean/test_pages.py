"""Pages of keys and values: shared, copied before they are written to, reused as they are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from random_rows import RandomRows, Scratch
from tiny_models import Architecture, random_tokens

pytest.importorskip("numba")

from forerun.lean import pages as storage
from forerun.lean.attention import PAGE, HeadShape
from forerun.lean.model import LeanModel
from forerun.lean.pages import CHUNK, FIRST_CHUNK, LINE, Page, Pages, empty_pages
from forerun.lean.shape import LANES
from forerun.lean.storage import padded

SIZE = 6
HEADS = HeadShape(4, 2, SIZE, padded(SIZE), np.float32(1), False, np.float32(0))
NUM_LAYERS = 2
NUM_ROWS = 5
ACTIONS = ("write", "write", "write", "share", "move", "cut", "copy out", "copy in", "release")


def no_angles(begin: int, end: int) -> Any:
    positions = np.arange(begin, end, dtype=np.float32)[None, :, None]
    return positions, -positions


def no_pages() -> Pages:
    return Pages(NUM_LAYERS, NUM_ROWS, HEADS, no_angles)


def write(pages: Pages, row: int, slot: int, number: float) -> None:
    page = pages.of_row(row, slot + 1)[slot // PAGE]
    panel, lane = divmod(slot % PAGE, LANES)
    page.keys[:, :, panel, :, lane] = number
    page.values[:, :, 0, slot % PAGE, :SIZE] = -number


def read(held: list[Page], length: int) -> list[float]:
    """What `write` wrote to the first slots, in all layers and heads."""
    if not held:
        return []
    keys = np.concatenate([page.keys.swapaxes(3, 4).reshape(-1, PAGE, SIZE) for page in held], 1)
    values = np.concatenate([page.values[:, :, 0].reshape(-1, PAGE, LANES) for page in held], 1)
    numbers = keys[0, :length, 0]
    assert (keys[:, :length] == numbers[:, None]).all()
    assert (values[:, :length, :SIZE] == -numbers[:, None]).all()
    return [float(number) for number in numbers]


def test_random_operations_against_plain_lists() -> None:
    """Rows that are written to, share beginnings, move slots, go back and are released."""
    generator, pages = random.Random(1), no_pages()
    lists: list[list[float]] = [[] for _ in range(NUM_ROWS)]
    outside: list[tuple[list[Page], list[float]]] = []
    number = 0.0
    num_shared = num_moved = 0
    for _ in range(500):
        row, other = generator.sample(range(NUM_ROWS), 2)
        numbers = lists[row]
        action = generator.choice(
            ("write", "write", "share", "move", "cut", "release", "copy out", "copy in")
        )
        if action == "write":
            count = generator.choice((1, 40, 150))
            pages.reserve(row, len(numbers), len(numbers) + count)
            for _ in range(count):
                number += 1
                write(pages, row, len(numbers), number)
                numbers.append(number)
        elif action == "share":
            most = len(lists[other])
            length = generator.choice((most, generator.randint(0, most)))
            pages.share(pages.of_row(other, length), row)
            lists[row] = lists[other][:length]
            num_shared += length
        elif action == "move" and len(numbers) > 2:
            begin = generator.randrange(len(numbers) - 1)
            pages.reserve(row, begin, len(numbers))
            count = generator.randint(1, min(80, len(numbers) - begin))
            old = sorted(generator.sample(range(begin, len(numbers)), count))
            pages.move(row, np.array(old), np.arange(begin, begin + count))
            numbers[begin : begin + count] = [numbers[slot] for slot in old]
            num_moved += count
        elif action in ("cut", "release"):
            length = generator.randint(0, len(numbers)) if action == "cut" else 0
            pages.cut(row, length)
            del numbers[length:]
        elif action == "copy out":
            length = generator.randint(0, len(numbers))
            outside.append((pages.copy_out(row, length), numbers[:length]))
        elif outside:
            held, known = generator.choice(outside)
            pages.share(held, row)
            lists[row] = list(known)
        for index, numbers in enumerate(lists):
            held = pages.of_row(index, len(numbers))
            assert read(held, len(numbers)) == numbers
            addresses = pages.cache.pages[index, : len(held)].tolist() if held else []
            assert addresses == [page.numbers.ctypes.data for page in held]
            apart = pages.cache.apart[index, : len(held)].tolist() if held else []
            assert apart == [page.values.ctypes.data - page.keys.ctypes.data for page in held]
        longest = max(map(len, lists))
        assert pages.cache.cos.shape[1] >= longest
    assert num_shared > 1000
    assert num_moved > 300
    for held, known in outside:
        assert read(held, len(known)) == known
    cosines = pages.cache.cos[0, :, 0]
    np.testing.assert_array_equal(cosines, np.arange(len(cosines)))


def test_a_page_begins_with_a_cache_line() -> None:
    for page in empty_pages(5, NUM_LAYERS, HEADS):
        assert page.numbers.ctypes.data % LINE == 0
        assert np.shares_memory(page.keys, page.numbers)
        assert np.shares_memory(page.values, page.numbers)
        assert not np.shares_memory(page.keys, page.values)


def test_pages_of_a_text_follow_each_other_in_a_chunk() -> None:
    """Of each head first the keys and then the values; also in pages that were used before."""
    pages = no_pages()
    page_bytes = 4 * PAGE * HEADS.wide
    for _ in range(2):
        pages.reserve(0, 0, 4 * CHUNK * PAGE)
        held = pages.of_row(0, 4 * CHUNK * PAGE)
        steps = np.diff([page.numbers.ctypes.data for page in held])
        assert np.count_nonzero(steps == page_bytes) == 4 * CHUNK - 6  # chunks of 2, 2, 4, 8, 8, 8
        assert [page.numbers.strides[2] // page_bytes for page in held[-CHUNK:]] == [CHUNK] * CHUNK
        pages.cut(0, 0)
    few = no_pages()
    few.reserve(0, 0, 1)
    assert few.num_allocated == FIRST_CHUNK


def test_pages_are_reused_over_a_thousand_requests() -> None:
    """Never more pages than were in use at once, shared ones counted once, but one for each row
    that is cleared ahead, and what is left of a chunk."""
    generator, pages = random.Random(2), no_pages()
    lengths = [0] * NUM_ROWS
    most = 0
    for _ in range(1000):
        row, other = generator.sample(range(NUM_ROWS), 2)
        pages.cut(row, 0)
        lengths[row] = generator.randint(1, 6 * PAGE)
        begin = 0
        if generator.random() < 0.5:
            begin = min(lengths[other], lengths[row])
            pages.share(pages.of_row(other, begin), row)
        pages.reserve(row, begin, lengths[row])
        used = {id(page) for at in range(NUM_ROWS) for page in pages.of_row(at, lengths[at])}
        most = max(most, len(used))
        assert pages.num_used == len(used)
    assert most <= pages.num_allocated < most + NUM_ROWS + CHUNK
    assert most <= NUM_ROWS * 6


def test_pages_are_cleared_before_rows_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that reach the end of a page together are given what was written to before, and keys are
    never what another use of the memory has left: subnormal ones would be slow."""

    def marked(count: int, num_layers: int, heads: HeadShape) -> list[Page]:
        made = empty_pages(count, num_layers, heads)
        memory(made[0])[:] = np.nan
        return made

    def memory(page: Page) -> Any:
        """Of its chunk."""
        assert page.numbers.base is not None
        return page.numbers.base.view(np.float32)

    monkeypatch.setattr(storage, "empty_pages", marked)
    pages = no_pages()
    for slot in range(PAGE):
        for row in range(NUM_ROWS):
            pages.reserve(row, slot, slot + 1)
    num_ready = 0
    for row in range(NUM_ROWS):
        pages.reserve(row, PAGE, PAGE + 1)
        first, second = pages.of_row(row, PAGE + 1)
        assert (first.keys == 0).all()
        assert (second.keys == 0).all()
        num_ready += bool((second.values == 0).all())
    assert num_ready > 0  # the others were left over from chunks that were needed at once
    assert np.isnan(pages.of_row(0, 1)[0].values).all()  # this one was needed at once
    assert pages.num_used == 2 * NUM_ROWS


def lean() -> LeanModel:
    model = Architecture("llama", "", {"max_position_embeddings": 1024}, dtype=torch.float32)
    return LeanModel(model.build(), num_threads=1)


def test_a_prefix_is_shared_until_it_is_written_to() -> None:
    model = lean()
    state = model.start(4)
    text = random_tokens(random.Random(3), 3 * PAGE + 5)
    model.score(state, [0], [text], [1])
    model.commit(state, [0], [len(text)])
    pages = state._pages
    assert pages.num_used == 4
    for row in (1, 2, 3):
        model.copy_prefix(state, 0, row, len(text))
    assert pages.num_used == 4
    model.score(state, [1, 2], [[7], [8]], [1, 1])
    assert pages.num_used == 6  # the last page of each
    model.truncate(state, 3, PAGE)
    model.score(state, [3], [[9]], [1])
    assert pages.num_used == 7
    for row in range(4):
        model.release(state, row)
    assert pages.num_used == 0


def test_what_a_page_held_before_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page begins as NaN, which would spread to whatever reads it."""
    make = Pages._new_page

    def poisoned(pages: Pages) -> Page:
        page = make(pages)
        page.numbers[...] = np.nan
        return page

    monkeypatch.setattr(Pages, "_new_page", poisoned)
    model = lean()

    def from_scratch(text: list[int]) -> Scratch:
        return Scratch(model.score(model.start(1), [0], [text], [len(text)])[0])

    played = RandomRows(model, from_scratch, num_rows=4, seed=5, has_trees=True).play(120)
    assert played.worst == 0
    assert np.isfinite(played.worst)


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_number_of_pages(length: int, expected: int) -> None:
    assert no_pages().num_pages(length) == expected
