"""Following every outcome: each once, with its chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.noise.addresses import Address, Purpose
from forerun.proof.branches import BranchingNoise, CannotEnumerate, Path, every_path


def test_every_path_is_followed_once() -> None:
    """Later questions may depend on earlier answers."""

    def run(path: Path) -> tuple[int, ...]:
        first = path.ask(3)
        return (first, *(path.ask(2) for _ in range(first)))

    assert list(every_path(run)) == [
        (0,),
        (1, 0),
        (1, 1),
        (2, 0, 0),
        (2, 0, 1),
        (2, 1, 0),
        (2, 1, 1),
    ]


def test_code_that_asks_nothing_has_one_path() -> None:
    assert list(every_path(lambda path: "done")) == ["done"]


def test_code_that_does_not_repeat_itself_is_noticed() -> None:
    options = iter([3, 3, 2])  # the third run is to take the last of three that are now two

    def run(path: Path) -> int:
        return path.ask(next(options))

    with pytest.raises(CannotEnumerate, match="other than its rng"):
        list(every_path(run))


def test_weights_are_the_chances_of_the_path() -> None:
    """A coin for both rows, then a token for the second alone."""
    chances, law = np.array([[0.25], [1.0]]), np.array([[1.0, 3.0]])

    def run(path: Path) -> tuple[bool, int, np.ndarray]:
        noise = BranchingNoise(path, 2)
        head = bool(noise.coins([0], chances)[0, 0])
        token = int(noise.race(law, np.array([1]), np.array([0]))[0])
        return head, token, noise.weights

    found = {(head, token): weights.tolist() for head, token, weights in every_path(run)}
    assert found == {
        (False, 0): [0.75, 0.0],  # and no second token: the row it is for never gets here
        (True, 0): [0.25, 0.25],
        (True, 1): [0.0, 0.75],
    }


# --- numbers that are met again ----------------------------------------------------------------

COIN = Address(Purpose.ACCEPT, 0, 0)


def test_a_coin_met_again_is_the_number_it_was() -> None:
    """Below 0.5 is certain once it is below 0.2, and less likely once it is not."""

    def run(path: Path) -> tuple[bool, bool, float, set[Address]]:
        noise = BranchingNoise(path, 1)
        first, second = (bool(noise.coins([0], np.array([[c]]))[0, 0]) for c in (0.2, 0.5))
        return first, second, float(noise.weights[0]), noise.reused

    found = {(a, b): (weight, reused) for a, b, weight, reused in every_path(run)}
    assert {key: weight for key, (weight, _) in found.items()} == pytest.approx(
        {(True, True): 0.2, (False, True): 0.3, (False, False): 0.5}
    )
    assert all(reused == {COIN} for _, reused in found.values())


def test_other_slots_and_certain_coins_are_no_reuse() -> None:
    """A coin that is sure to fall one way reads nothing; rows that are out ask nothing."""

    def run(path: Path) -> set[Address]:
        noise = BranchingNoise(path, 2)
        noise.coins([0, 1], np.full((2, 2), 0.5))
        noise.coins([0, 1], np.array([[0.0, 1.0], [1.0, 0.0]]))
        return noise.reused

    assert all(reused == set() for reused in every_path(run))


def test_a_draw_met_again_comes_from_the_same_number() -> None:
    """The same law gives the same token; another one is split where the number may lie."""
    laws = np.array([[[0.5, 0.5]], [[0.25, 0.75]]])

    def run(path: Path) -> tuple[tuple[int, ...], float, set[Address]]:
        noise = BranchingNoise(path, 1)
        tokens = tuple(int(noise.draw(law)[0]) for law in (laws[0], laws[0], laws[1]))
        return tokens, float(noise.weights[0]), noise.reused

    outcomes = [outcome for outcome in every_path(run) if outcome[1] > 0]
    assert {tokens: weight for tokens, weight, _ in outcomes} == pytest.approx(
        {(0, 0, 0): 0.25, (0, 0, 1): 0.25, (1, 1, 1): 0.5}
    )
    assert all(reused == {Address(Purpose.RESIDUAL, 0, 0)} for _, _, reused in outcomes)


def test_a_race_at_a_position_met_again_is_noticed() -> None:
    law, row = np.array([[0.5, 0.5]]), np.array([0])

    def run(path: Path) -> set[Address]:
        noise = BranchingNoise(path, 1, first=3)
        for slot in (0, 1, 1):
            noise.race(law, row, np.array([slot]))
        return noise.reused

    assert all(reused == {Address(Purpose.TARGET, 4, 0)} for reused in every_path(run))


def by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    return first + slot, 0


def test_a_later_round_knows_what_an_earlier_one_has_learned() -> None:
    """The second coin of a round at 0 is the first one of a round at 1."""

    def run(path: Path) -> tuple[Any, bool, set[Address], float]:
        noise = BranchingNoise(path, 1, addressing=by_position)
        noise.coins([0, 1], np.array([[0.5, 0.2]]))
        memory = noise.remembered(0, first=1)
        later = BranchingNoise(path, 1, 1, by_position, memory)
        head = bool(later.coins([0], np.array([[0.6]]))[0, 0])
        return memory, head, later.reused, float(noise.weights[0] * later.weights[0])

    outcomes = list(every_path(run))
    address = Address(Purpose.ACCEPT, 1, 0)
    assert {memory for memory, *_ in outcomes} == {((address, s),) for s in ((0, 0.2), (0.2, 1))}
    assert all(reused == {address} for _, _, reused, _ in outcomes)
    assert sum(weight for _, head, _, weight in outcomes if head) == pytest.approx(0.6)


def test_an_address_before_the_round_may_have_been_met_there() -> None:
    noise = BranchingNoise(Path(), 1, 2, lambda purpose, first, slot: (0, slot))
    noise.coins([0], np.array([[0.5]]))
    assert noise.reused == {COIN}
