"""Who is blamed for replicas that die: one that kills, and nobody where all are killed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from forerun.scale.blame import LEAST_DEATHS, Blame, chance_of
from forerun.serve.admission.engine_deaths import Death

MANY = 12


@dataclass(eq=False)
class Stay:
    """An answer's time in a replica, as `RemoteEngine` tells it."""

    seconds: float
    failure: Exception | None = None
    has_given: bool = False
    known: tuple[int, float] = (0, 0.0)


class Requests:
    """Several requests that are in replicas at the same times."""

    def __init__(self, count: int, blame: Blame) -> None:
        self.blame = blame
        self.deaths: list[list[Death]] = [[] for _ in range(count)]

    def lose(self, seconds: list[float], has_given: list[bool]) -> list[bool]:
        """All of them lose a replica in which they were for so long; who is blamed."""
        stays = [
            Stay(*stay, has_given=given)
            for stay, given in zip(
                [(time, RuntimeError("killed")) for time in seconds], has_given, strict=True
            )
        ]
        blamed = []
        for stay in stays:
            self.blame.enter(stay)
        for stay, deaths in zip(stays, self.deaths, strict=True):
            deaths.append(self.blame.accuse(stay))
            blamed.append(self.blame.blames(deaths))
            self.blame.leave(stay)
        return blamed

    def live(self, seconds: float, count: int) -> None:
        """So many others are in replicas for so long."""
        for _ in range(count):
            stay = Stay(seconds, has_given=True)
            self.blame.enter(stay)
            self.blame.leave(stay)


def test_one_that_is_alone_and_kills_is_blamed_at_once() -> None:
    requests = Requests(1, Blame())
    blamed = [requests.lose([0.5], [False]) for _ in range(LEAST_DEATHS)]
    assert blamed == [[False]] * (LEAST_DEATHS - 1) + [[True]]


@pytest.mark.parametrize("hours_before", [0, 10])
def test_where_all_are_killed_nobody_is_blamed(hours_before: int) -> None:
    """Eight long prompts, replicas that live for 5 seconds; quiet hours before prove nothing."""
    requests = Requests(8, Blame())
    requests.live(3600.0 * hours_before, 8)
    for _ in range(MANY):
        assert not any(requests.lose([5.0] * 8, [False] * 8))


def test_one_that_kills_among_others_is_blamed_and_they_are_not() -> None:
    """Its companions are lost with it, but have had tokens; they live while it stays away."""
    requests = Requests(8, Blame())
    for death in range(1, MANY):
        blamed = requests.lose([0.5] * 8, [False] + [True] * 7)
        assert not any(blamed[1:])
        if blamed[0]:
            assert LEAST_DEATHS <= death <= 5
            return
        requests.live(2.0**death, 7)
    pytest.fail("never blamed")


def test_a_token_in_between_clears_a_request() -> None:
    requests = Requests(1, Blame())
    for _ in range(MANY):
        for _ in range(LEAST_DEATHS - 1):
            assert requests.lose([0.5], [False]) == [False]
        assert requests.lose([0.5], [True]) == [False]


def test_chances_are_poissons() -> None:
    for expected in (0.0, 0.3, 2.0, 9.0):
        assert chance_of(1, expected) == pytest.approx(1 - math.exp(-expected), abs=1e-12)
        two = 1 - math.exp(-expected) * (1 + expected)
        assert chance_of(2, expected) == pytest.approx(two, abs=1e-12)
