"""Following every outcome: each once, with its chance."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.branches import BranchingNoise, CannotEnumerate, Path, every_path


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
