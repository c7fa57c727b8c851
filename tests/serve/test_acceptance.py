"""Acceptance outside the usual: few false alarms on ordinary traffic, and what is found."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.serve.watching.acceptance import ADAPTS, LEAST_ANSWERS, Acceptance, _tail

MIXES = {
    "alike": [(0.6, 0.03, 1.0)],
    "chats": [(0.45, 0.15, 1.0)],
    "chats and code": [(0.45, 0.12, 0.6), (0.8, 0.08, 0.4)],
    "with copies": [(0.4, 0.15, 0.8), (0.95, 0.03, 0.2)],
}
"""Mean, spread and share of the chances of the answers to several kinds of requests."""


def answers(mix: str, count: int, seed: int) -> list[tuple[int, int]]:
    """(judged, accepted) of answers of many lengths."""
    generator = np.random.default_rng(seed)
    means, spreads, shares = map(np.array, zip(*MIXES[mix], strict=True))
    kinds = generator.choice(len(shares), count, p=shares)
    mean, spread = means[kinds], spreads[kinds]
    weight = mean * (1 - mean) / spread**2 - 1
    chances = generator.beta(mean * weight, (1 - mean) * weight)
    judged = np.exp(generator.uniform(np.log(8), np.log(600), count)).astype(int)
    return list(zip(judged.tolist(), generator.binomial(judged, chances).tolist(), strict=True))


def test_the_tail_is_that_of_the_law() -> None:
    generator = np.random.default_rng(0)
    draws = generator.binomial(40, generator.beta(3, 2, 200_000))
    for most in (5, 12, 30):
        assert _tail(40, most, 3, 2) == pytest.approx((draws <= most).mean(), abs=0.005)
    assert _tail(40, 40, 3, 2) == pytest.approx(1)


@pytest.mark.parametrize("mix", MIXES)
def test_ordinary_traffic_alarms_nobody(mix: str) -> None:
    acceptance = Acceptance()
    marks, alarms = 0, 0
    for judged, accepted in answers(mix, 2_000, seed=1):
        marks += acceptance.judge("heads", judged, accepted) is not None
        alarms += acceptance.alarm is not None
    assert marks <= 8  # 4 of 1,000
    assert alarms == 0


@pytest.mark.parametrize(
    ("mix", "rate", "direction"),
    [
        ("alike", 0.3, "low"),
        ("alike", 0.97, "high"),
        ("chats", 0.0, "low"),
        ("chats", 1.0, "high"),
        ("chats and code", 0.02, "low"),
        ("chats and code", 1.0, "high"),
    ],
)
def test_garbled_and_looping_answers_are_found(mix: str, rate: float, direction: str) -> None:
    acceptance = Acceptance()
    for judged, accepted in answers(mix, 300, seed=2):
        acceptance.judge("heads", judged, accepted)
    found = 0
    for number in range(5):
        found += acceptance.judge("heads", 300, round(300 * rate)) == direction
        acceptance.judge("other", 300, 150)  # another drafter's answers are not compared with it
        assert (acceptance.alarm == direction) == (number >= 2)
    assert found == 5
    for judged, accepted in answers(mix, 40, seed=3):
        acceptance.judge("heads", judged, accepted)
    assert acceptance.alarm is None


def test_nothing_is_unusual_before_enough_is_known() -> None:
    acceptance = Acceptance()
    for _ in range(LEAST_ANSWERS):
        assert acceptance.judge("heads", 100, 60) is None
    assert acceptance.judge("heads", 10, 0) is None  # too short to tell
    assert acceptance.judge("heads", 100, 0) == "low"


def test_what_stays_is_the_usual_after_a_while() -> None:
    """A new kind of requests: the alarm ends by itself, and later ones are compared with these."""
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.judge("heads", 100, 60)
    told = [acceptance.judge("heads", 100, 5) for _ in range(ADAPTS + LEAST_ANSWERS + 20)]
    assert told[:ADAPTS] == ["low"] * ADAPTS
    assert told[-10:] == [None] * 10
    assert acceptance.alarm is None
    assert acceptance.judge("heads", 100, 60) == "high"


def test_kinds_are_bounded() -> None:
    acceptance = Acceptance()
    for number in range(1_000):
        acceptance.judge(f"drafter {number}", 100, 50)
    assert len(acceptance._kinds) <= 32
