"""What rounds take, learned in a world where that is known."""

from __future__ import annotations

import random

import pytest

from forerun.engine.costs import Clock, Costs, Passes, usual


def test_the_clock_reads_between_and_beyond_what_it_timed() -> None:
    clock = Clock()
    clock.learn(2, 10.0)
    assert clock(1) == 10.0
    assert clock(4) == 20.0  # nothing is known: at most in proportion
    clock.learn(6, 14.0)
    assert clock(4) == 12.0
    assert clock(8) == 16.0
    for seconds in (14.0, 90.0, 14.0):
        clock.learn(6, seconds)
    assert clock(6) == 14.0  # one slow pass is not believed


def test_what_is_larger_does_not_take_less() -> None:
    clock = Clock()
    for size, seconds in ((1, 8.0), (2, 30.0), (4, 12.0), (5, 13.0)):
        clock.learn(size, seconds)
    assert [clock(size) for size in (1, 2, 3, 4, 5)] == [8.0, 12.0, 12.0, 12.0, 13.0]
    assert clock.steady(2) == {}
    clock.learn(4, 12.0)
    assert clock.steady(2) == {4: 12.0}


def test_interruptions_count_and_disasters_do_not() -> None:
    assert usual([3.0]) == 3.0
    assert usual([3.0, 5.0]) == 4.0
    assert usual([3.0, 5.0, 11_000.0]) == 5.0
    timings = [10.0] * 20 + [20.0] * 4 + [11_000.0]
    assert 10.5 < usual(timings) < 11.5


def passes(*, num_texts: int, phase: float = 1.0, noise: float = 0.1, seed: int = 0) -> Passes:
    """Passes over texts of 50 to 1000 tokens: 8 + 1.5 a token, and 0.001 for each key."""
    generator, known = random.Random(seed), Passes()
    for text in range(num_texts):
        length = generator.choice([50, 100, 600, 1000])
        slow = phase if text >= num_texts // 2 else 1.0
        for number in range(60):
            size = generator.choice([1, 2, 2, 3, 4])
            known.context = length + number
            true = 8.0 + 1.5 * (size - 1) + 0.001 * known.context * (size + 1)
            known.learn(size, slow * true * (1 + generator.expovariate(1) * noise))
    return known


def test_long_texts_are_told_from_many_tokens() -> None:
    known = passes(num_texts=12)
    assert known.per_key == pytest.approx(0.0011, rel=0.15)
    for context, size in ((0, 1), (0, 4), (1000, 1), (1000, 4)):
        known.context = context
        true = 1.08 * (8.0 + 1.5 * (size - 1) + 0.001 * context * (size + 1))
        assert known(size) * known.slowness == pytest.approx(true, rel=0.08)


def test_a_size_is_compared_with_others_though_it_was_timed_in_better_times() -> None:
    known = Passes()
    for _ in range(20):
        known.learn(1, 8.0)
        known.learn(3, 12.0)
    for _ in range(15):
        known.learn(3, 18.0)  # everything takes half as long again
    assert 1.5 <= known(3) / known(1) < 1.75  # and not 2, as if passes of three had become dear
    assert 1.15 < known.slowness < 1.5


def test_slowness_does_not_run_away() -> None:
    known = passes(num_texts=100, noise=0.3)
    assert 0.8 < known.slowness < 1.25


def test_a_clock_that_stands_still_is_no_harm() -> None:
    costs = Costs()
    for _ in range(5):
        costs.score.learn(1, 0.0)
        costs.draft.learn(0, 0.0)
    assert costs.round(1, 0) == 0.0
    costs.score.learn(1, 1.0)
    assert costs.round(1) >= 0.0


def test_reading_is_what_a_draft_took_beyond_itself() -> None:
    costs = Costs()
    assert costs.learn_reading(100, 2, 9.0) == 0.0  # nothing to compare with
    costs.draft.learn(2, 1.0)
    assert costs.learn_reading(0, 2, 9.0) == 0.0
    assert costs.learn_reading(100, 2, 9.0) == 8.0
    assert costs.reading.middle == 0.08
    assert costs.learn_reading(100, 2, 0.5) == 0.0
