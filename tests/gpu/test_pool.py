"""The pool of pages: how large it is, who shares it, and what is bounded beside it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.base.capturing import LOCK as CAPTURES  # noqa: E402
from forerun.gpu import attention, pool, shapes, storage  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.pool import (  # noqa: E402
    LOCK,
    ON_HOST,
    DeviceMemoryError,
    DevicePages,
    Paged,
    Pool,
    room_for,
)
from forerun.gpu.storage import Recent  # noqa: E402
from forerun.loading.lean_pass import memory_of  # noqa: E402
from forerun.loading.packed_checkpoint import told  # noqa: E402

pytestmark = IN_INTERPRETER
GIB = 2**30
TEXT = [(7 * place * place + 3) % 40 for place in range(60)]


def test_how_much_of_a_device_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share or an amount counts what the process has already, and what others have."""
    monkeypatch.setattr(pool, "SHARE", 0.5)
    monkeypatch.setattr(pool, "SPARED", 1 / 32)
    assert room_for(None, 40 * GIB, 64 * GIB, 24 * GIB) == 20 * GIB
    assert room_for(0.75, 40 * GIB, 64 * GIB, 24 * GIB) == 24 * GIB
    assert room_for(40 * GIB, 40 * GIB, 64 * GIB, 24 * GIB) == 16 * GIB
    assert room_for(1.0, 30 * GIB, 64 * GIB, 24 * GIB) == 28 * GIB  # another process has 10
    assert room_for(0.25, 40 * GIB, 64 * GIB, 24 * GIB) == 0
    assert room_for(0.75, 40 * GIB, 64 * GIB, 24 * GIB, apart=3 * GIB) == 21 * GIB
    assert room_for(1.0, 30 * GIB, 64 * GIB, 24 * GIB, apart=3 * GIB) == 25 * GIB
    with pytest.raises(fr.InputError, match=r"80\.0 GiB, where there are 64\.0 GiB"):
        room_for(80 * GIB, 40 * GIB, 64 * GIB, 24 * GIB)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0.9", 0.9),
        (0.5, 0.5),
        ("1", 1.0),
        ("40GiB", 40 * GIB),
        ("512 MiB", GIB // 2),
        (None, None),
    ],
)
def test_how_memory_is_said(given: Any, expected: Any) -> None:
    memory = memory_of(given)
    assert memory == expected
    assert type(memory) is type(expected)
    assert memory_of(None) is None


def angles(count: int) -> Any:
    return torch.zeros((2, 1, count, 8))


def test_models_that_were_started_are_given_as_many_pages_each() -> None:
    weights = GpuModel(build())._weights
    first, second, late = (Pool(weights, angles, 40_000) for _ in range(3))
    for one in (first, second):
        one.start()
    assert first.num_unused == ON_HOST - 1
    assert second.num_pages == first.num_pages
    assert late.num_pages == 0
    keys = first.tensors[0]
    assert keys.shape == (1, ON_HOST, 1, shapes.CHUNK, 16)
    owner = torch.nn.Linear(1, 1)
    part = first.part(owner, [(1, shapes.CHUNK, 4)])
    assert part.tensors[0].shape == (1, ON_HOST, shapes.CHUNK, 4)
    assert first.part(owner, []) is part


def test_pages_belong_to_one_row_or_to_rows_that_began_alike() -> None:
    """Random rows of two engines in two threads, which take, share, copy, rest and give back."""
    pool = Pool(GpuModel(build())._weights, angles, 4000, given=40)
    engines = [DevicePages(pool, 6) for _ in range(2)]
    failures: list[BaseException] = []

    class Rows:
        def __init__(self, pages: DevicePages) -> None:
            self.pages, self.lengths = pages, [0] * 6

        def release(self, row: int) -> None:
            self.lengths[row] = 0
            self.pages.cut(row, 0)

    def play(number: int) -> None:
        drawn, rows = random.Random(number), Rows(engines[number])
        try:
            for _ in range(400):
                row, other = drawn.sample(range(6), 2)
                action = drawn.choice(("grow", "grow", "share", "cut", "rest", "release"))
                if action == "grow":
                    with suppress(DeviceMemoryError), LOCK:
                        begin = rows.lengths[row]
                        end = begin + drawn.randrange(1, 500)
                        rows.pages.reserve(row, begin, end)
                        rows.lengths[row] = end
                elif action == "share":
                    with LOCK:
                        length = drawn.randint(0, rows.lengths[other])
                        rows.pages.share(rows.pages.of_row(other, length), row)
                        rows.lengths[row] = length
                elif action == "cut":
                    with LOCK:
                        rows.lengths[row] = drawn.randint(0, rows.lengths[row])
                        rows.pages.cut(row, rows.lengths[row])
                elif action == "rest":
                    rows.pages.rest(row, rows)
                else:
                    rows.release(row)
        except BaseException as error:
            failures.append(error)
        kept.append(rows)

    kept: list[Rows] = []
    threads = [threading.Thread(target=play, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    held = Counter[int]()
    for pages in engines:
        for row in range(6):
            numbers = [page.number for page in pages.of_row(row, 4000)]
            assert pages.table[row, : len(numbers)].tolist() == numbers
            assert not pages.table[row, len(numbers) :].any()
            held.update(numbers)
            assert all(page.num_holders > 0 for page in pages.of_row(row, 4000))
    holders = {page.number: page.num_holders for pages in engines for row in range(6)
               for page in pages.of_row(row, 4000)}  # fmt: skip
    assert holders == held
    assert 0 not in held
    assert len(held) + pool.num_unused == 39
    for pages in engines:
        pages.clear()
    assert pool.num_unused == 39


def test_a_device_that_another_process_fills_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is looked at once more; a drafter that is left without pages is tried later."""
    weights = GpuModel(build())._weights
    target, draft = (Pool(weights, angles, 40_000) for _ in range(2))
    draft.start()
    sizes, make = iter([90, 50]), Paged.make

    def crowded(self: Paged, num_pages: int) -> None:
        if num_pages == 90 or self is draft._own:
            raise DeviceMemoryError("taken")
        make(self, num_pages)

    monkeypatch.setattr(Paged, "make", crowded)
    monkeypatch.setattr(pool, "_most_pages", lambda *_: next(sizes, 0))
    assert target.num_unused == 49
    assert draft.num_pages == 0
    with pytest.raises(DeviceMemoryError, match="taken"):
        draft.make()


def test_what_a_device_holds_is_freed_while_nobody_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch raises if another thread captures then; who captures waits for no pool that is made."""
    seen: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(CAPTURES.locked()))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * GIB, 64 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(pool, "SHARE", 0.5)
    assert pool._most_pages(SimpleNamespace(type="cuda"), GIB, None, 0) == 20
    assert seen == [True]
    made = Pool(GpuModel(build())._weights, angles, 4000)
    made.make()
    capture = threading.Thread(target=made.make, daemon=True)
    with LOCK:
        capture.start()
        capture.join(10)
    assert not capture.is_alive()


def test_room_is_told_before_there_are_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made once all models are there that share them."""
    monkeypatch.setattr(pool, "_most_pages", lambda *_: 50)
    model = GpuModel(build())
    rows = model._pass.pool
    assert rows.num_expected == 49
    assert rows.num_pages == 0
    assert rows.num_unused == 49
    monkeypatch.setattr(pool, "_most_pages", lambda *_: 2)
    assert rows.num_expected == 49
    rest = Pool(model._weights, angles, 40, given=3)
    assert rest.num_expected == 2
    monkeypatch.setattr(GpuModel, "num_tokens_free", property(lambda self: 1 / 0))
    monkeypatch.setattr(GpuModel, "num_tokens_expected", 49 * shapes.CHUNK)
    assert told(model, "fp8").endswith("; room for about 6,272 tokens")


def test_a_row_that_a_collection_of_garbage_releases_first_is_no_error() -> None:
    class Quicker(dict[Any, Any]):
        def __iter__(self) -> Any:
            first = next(super().__iter__())
            self.clear()
            return iter([first])

    full = Pool(GpuModel(build())._weights, angles, 4000, given=3)
    pages = DevicePages(full, 2)
    pages.rest(0, pages)
    full._resting = Quicker(full._resting)
    assert not full.free(3)


def test_a_trial_does_not_make_the_pool_that_stays() -> None:
    model = GpuModel(build())
    trial = model.on_trial()
    trial.score(trial.start(1), [0], [TEXT], [1])
    assert trial._pass.pool.num_pages > 0 == model._pass.pool.num_pages


def test_a_pool_is_given_what_passes_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is made before it, and logits of both models are left room for."""
    aparts: list[int] = []

    def most_pages(device: Any, page_bytes: int, memory: Any, apart: int) -> int:
        aparts.append(apart)
        return 50

    monkeypatch.setattr(pool, "_most_pages", most_pages)
    model = build()
    target, draft = GpuModel(model), GpuModel(noisy_copy(model, 0.1))
    rows = [one.start(2) for one in (target, draft)]
    assert all(isinstance(one.storage._attention, attention.AttentionScratch) for one in rows)
    assert not aparts
    assert target._pass.pool.num_unused == 49
    most = 2 * shapes.MOST_LOGITS * model.config.vocab_size * 4
    used = [
        one.storage.logits(use, shapes.MOST_LOGITS) for one in rows for use in ("pass", "round")
    ]
    assert sum(logits.numel() * 4 for logits in used) <= aparts[0] == 2 * 2 * most


class Stream:
    """A queue of a device, and the queues that it has waited for."""

    def __init__(self) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


def test_a_table_that_another_stream_has_changed_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second engine takes the pages of a row that rests, whose next text shares others."""
    shared = Pool(GpuModel(build())._weights, angles, 4000, given=3)
    pages = DevicePages(shared, 2)
    pages.table  # noqa: B018
    ours, theirs = Stream(), Stream()
    current = [ours]
    monkeypatch.setattr(Pool, "device", property(lambda self: SimpleNamespace(type="cuda")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    pages.reserve(0, 0, 5)
    pages.reserve(1, 0, 5)
    current[0] = theirs
    pages.cut(1, 0)
    assert theirs.waited == [ours]
    current[0] = ours
    assert not ours.waited
    pages.share(pages.of_row(0, 5), 1)
    assert ours.waited == [theirs]
    pages.cut(1, 0)
    assert ours.waited == [theirs]


def test_attention_without_room_for_its_chunks_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One program then goes through all chunks, also of trees, whose branches cross them."""
    monkeypatch.setattr(shapes, "CHUNK", 16)
    monkeypatch.setattr(attention, "BLOCK_KEYS", 16)
    model, text, logits = build(num_hidden_layers=2), [*TEXT, 1, 2], []
    for is_small in (False, True):
        target = GpuModel(model).on_trial()
        rows = target.start(1)
        if is_small:
            weights = target._weights
            rows.storage._attention = attention.AttentionScratch(weights, 1, 64)
        target.score(rows, [0], [text[:59]], [1])
        target.commit(rows, [0], [59])
        part = [target.score(rows, [0], [text[59:]], [3])[0].clone()]
        target.commit(rows, [0], [3])
        tree = target.score(rows, [0], [[5, 6, 7, 8]], [4], [[-1, 0, 1, 0]])[0]
        logits.append(torch.cat([*part, tree]))
    assert torch.equal(*logits)


def test_what_was_used_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST_CAPTURED", 2)
    kept = Recent()
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.recall("a") == 1
    kept.keep("c", 3)
    assert [*kept] == ["a", "c"]
    assert kept.recall("b") is None


def test_a_text_without_room_is_told_what_there_is_and_what_is_set_aside() -> None:
    room = Pool(GpuModel(build())._weights, angles, 4000, given=3)
    pages = DevicePages(room, 2)
    size = room.size
    there = rf"the pool has 2 pages of {size} tokens, {2 * size} tokens in 0\.00 GiB; set aside"
    with pytest.raises(DeviceMemoryError, match=rf"3 pages more, of 2 free; {there}: \d+% of the"):
        pages.reserve(0, 0, 2 * size + 1)
    room.memory = 0.9
    assert room.room.endswith("GiB for logits, 3% of the device for graphs")
