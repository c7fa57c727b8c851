"""The fastest of many cells is measured on prompts that it was not chosen on."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest
from small import answer, cell, run

from forerun.measure.held_out import Answer, Gain, held_out
from forerun.measure.held_out import answer as answer_of
from forerun.measure.records import Cell, Interval, Run

PLAIN = cell(None, 0)


def timed(of: Cell, paces: dict[str, float]) -> list[Run]:
    """A run of each prompt, with so many seconds for each of two tokens after the first."""
    return [
        run(of, answer(prompt, (0, 0, 0), seconds=1 + 2 * pace)) for prompt, pace in paces.items()
    ]


def test_a_half_is_timed_in_the_cell_that_is_fastest_on_the_other() -> None:
    """Of two prompts, a chooses K = 1 for b, and b chooses K = 2 for a."""
    cells = {
        cell(draft_length=1): timed(cell(draft_length=1), {"a": 0.1, "b": 0.8}),
        cell(draft_length=2): timed(cell(draft_length=2), {"a": 0.4, "b": 0.7}),
    }
    found = held_out(cells, timed(PLAIN, {"a": 1.0, "b": 1.0}))
    assert found is not None
    assert found.speedup.mean == pytest.approx(2 / (0.4 + 0.8))
    assert (found.num_prompts, found.num_cells) == (2, 2)
    assert found.answer is Answer.NOT_CLEAR  # of two prompts


def test_a_batch_is_left_out_as_a_whole() -> None:
    """K = 1 owes its speed to the first batch, which therefore may not vote for it."""

    def batches(of: Cell, first: float, second: float) -> list[Run]:
        return [
            run(of, *(answer(name, (0, 0, 0), seconds=1 + 2 * pace) for name in names))
            for names, pace in (("ab", first), ("cd", second))
        ]

    one, two = (cell(draft_length=length, batch=2) for length in (1, 2))
    cells = {one: batches(one, 0.1, 0.9), two: batches(two, 0.5, 0.5)}
    found = held_out(cells, batches(cell(None, 0, batch=2), 1.0, 1.0))
    assert found is not None
    assert found.speedup.mean == pytest.approx(4 / (0.5 + 0.5 + 0.9 + 0.9))


@pytest.mark.slow
def test_luck_among_many_equal_cells_is_not_counted_as_a_gain() -> None:
    """40 cells as fast as plain decoding, with noise of 20% a prompt; 20 sweeps, fixed seed.

    The mean of 20 held-out speed-ups has a standard error of 0.012.
    """
    noise = Random(0)
    prompts = [str(number) for number in range(24)]

    def noisy(of: Cell) -> list[Run]:
        return timed(of, {prompt: noise.lognormvariate(0, 0.2) for prompt in prompts})

    def total(runs: list[Run]) -> float:
        return sum(each.answers[0].seconds - 1 for each in runs)

    fastest, gains = [], []
    for _ in range(20):
        plain = noisy(PLAIN)
        cells = {
            cell(draft_length=length): noisy(cell(draft_length=length)) for length in range(40)
        }
        fastest.append(total(plain) / min(map(total, cells.values())))
        found = held_out(cells, plain)
        assert found is not None
        gains.append(found)
    assert mean(fastest) > 1.08  # what the fastest cell seems to gain
    assert mean(gain.speedup.mean for gain in gains) == pytest.approx(1, abs=0.04)
    assert sum(gain.answer is Answer.YES for gain in gains) <= 4  # 5 or more: odds 1 in 100


def test_a_cell_that_is_really_faster_is_found() -> None:
    noise = Random(1)
    prompts = [str(number) for number in range(24)]
    cells = {
        cell(draft_length=length): timed(
            cell(draft_length=length),
            {
                prompt: noise.lognormvariate(0, 0.1) / (1.3 if length == 7 else 1)
                for prompt in prompts
            },
        )
        for length in range(1, 9)
    }
    found = held_out(cells, timed(PLAIN, dict.fromkeys(prompts, 1.0)))
    assert found is not None
    assert found.answer is Answer.YES
    assert found.speedup.mean == pytest.approx(1.3, rel=0.06)


def test_one_batch_leaves_nothing_to_choose_with() -> None:
    plain = timed(PLAIN, {"a": 1.0})
    assert held_out({cell(): timed(cell(), {"a": 0.5})}, plain) is None
    assert held_out({}, plain) is None
    assert held_out({cell(): timed(cell(), {"a": 0.5, "b": 0.5})}, []) is None


@pytest.mark.parametrize(
    ("low", "high", "num_prompts", "expected"),
    [
        (1.01, 1.3, 12, Answer.YES),
        (1.01, 1.3, 11, Answer.NOT_CLEAR),
        (1.0, 1.3, 24, Answer.NOT_CLEAR),
        (0.9, 1.1, 24, Answer.NOT_CLEAR),
        (0.8, 0.99, 24, Answer.NO),
    ],
)
def test_an_interval_that_contains_1_is_not_clear(
    low: float, high: float, num_prompts: int, expected: Answer
) -> None:
    interval = Interval((low + high) / 2, low, high)
    assert answer_of(interval, num_prompts) is expected
    assert Gain(interval, num_prompts, 3).answer is expected
