"""Work that is shared: all of it, once, in order of stages, whoever turns up."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from forerun.lean.crew import Crew, new_board, share
from forerun.lean.jit import compiled


@compiled
def add_up(board: Any, counts: Any, sums: Any) -> None:
    """Each stage sums what the one before it counted: wrong if a stage begins too early."""
    for stage in range(len(counts)):
        for item in share(board, stage, counts.shape[1]):
            counts[stage, item] += 1
            if stage > 0:
                sums[stage, item] = counts[stage - 1].sum()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("num_items", [1, 3, 100, 1000])
def test_every_item_once_and_stage_after_stage(size: int, num_items: int) -> None:
    crew = Crew(size)
    for _ in range(5):
        counts = np.zeros((20, num_items), np.int64)
        sums = np.full((20, num_items), num_items, np.int64)
        crew.run(20, add_up, counts, sums)
        assert (counts == 1).all()
        assert (sums == num_items).all()


def test_a_helper_that_comes_late_finds_nothing_to_do() -> None:
    board = new_board(20, 2)
    counts, sums = np.zeros((20, 50), np.int64), np.zeros((20, 50), np.int64)
    add_up(board, counts, sums)
    counts[:] = -1  # the next pass has begun to use its memory
    late = threading.Thread(target=add_up, args=(board, counts, sums))
    late.start()
    late.join(60)
    assert not late.is_alive()
    assert (counts == -1).all()


def test_a_pass_that_is_over_is_closed() -> None:
    """Its last stages may never have been begun: what tells so is overwritten by the next pass,
    and a helper that was stopped on its way must not begin them then."""
    boards: list[Any] = []

    def begin(board: Any, counts: Any) -> None:
        boards.append(board)
        add_up(board, counts[:1], counts[:1])

    counts = np.zeros((20, 50), np.int64)
    Crew(1).run(20, begin, counts)
    add_up(boards[0], counts, counts)
    assert (counts[0] == 1).all()
    assert (counts[1:] == 0).all()


def keep_busy(release: threading.Event) -> None:
    """The only helper of a crew of two waits until it is released."""
    caller, came = threading.current_thread(), threading.Event()

    def wait(board: Any) -> None:
        if threading.current_thread() is caller:
            assert came.wait(60)
        else:
            came.set()
            release.wait(60)

    Crew(2).run(1, wait)


def test_nobody_waits_for_helpers_that_are_busy() -> None:
    release = threading.Event()
    keep_busy(release)
    counts = np.zeros((20, 50), np.int64)
    Crew(2).run(20, add_up, counts, np.zeros_like(counts))
    assert (counts == 1).all()
    release.set()


def test_crews_of_one_size_share_their_helpers() -> None:
    """A drafter's pass and the target's follow each other: one thread per core serves both."""
    met: set[int] = set()
    gate = threading.Barrier(3)  # the caller and two helpers

    def meet(board: Any) -> None:
        met.add(threading.get_ident())
        gate.wait(60)

    for _ in range(3):
        Crew(3).run(1, meet)
    assert len(met) == 3


def test_a_helper_that_has_not_begun_is_called_off() -> None:
    release, callers = threading.Event(), []
    keep_busy(release)
    Crew(2).run(1, lambda board: callers.append(threading.current_thread()))
    release.set()
    keep_busy(release)  # which comes after whatever was asked before
    assert callers == [threading.current_thread()]


def test_a_pass_is_begun_by_helpers_and_finished_by_its_caller() -> None:
    counts = np.zeros((20, 50), np.int64)
    begun = Crew(2).begin(20, add_up, counts, np.zeros_like(counts))
    for _ in range(1000):  # it needs the caller no more
        if counts[-1].all():
            break
        time.sleep(0.01)
    assert (counts == 1).all()
    begun.finish()
    assert (counts == 1).all()


@pytest.mark.parametrize("size", [1, 2])
def test_a_pass_that_nobody_has_begun_is_its_caller_s(size: int) -> None:
    release = threading.Event()
    keep_busy(release)
    counts = np.zeros((20, 50), np.int64)
    begun = Crew(size).begin(20, add_up, counts, np.zeros_like(counts))
    assert not counts.any()
    begun.finish()
    assert (counts == 1).all()
    release.set()


def test_several_threads_may_run_passes_at_once() -> None:
    crew = Crew(2)
    results = [np.zeros((20, 100), np.int64) for _ in range(4)]

    def many(counts: Any) -> None:
        for _ in range(50):
            crew.run(20, add_up, counts, np.zeros_like(counts))

    threads = [threading.Thread(target=many, args=(counts,)) for counts in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((counts == 50).all() for counts in results)
