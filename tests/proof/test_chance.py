"""The stand-in generator: every way ordinary code compares a random number, with exact chances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forerun.proof.branches import CannotEnumerate, every_path
from forerun.proof.chance import Chance


def law(code: Callable[[Any], Any]) -> dict[Any, float]:
    """What the code returns, and how likely."""
    found: dict[Any, float] = defaultdict(float)

    def run(path: Any) -> tuple[Any, float]:
        rng = Chance(path)
        return code(rng), rng.weight

    for result, weight in every_path(run):
        found[result] += weight
    return dict(found)


@pytest.mark.parametrize(
    "compare",
    [
        lambda u: u < 0.3,
        lambda u: u <= 0.3,
        lambda u: np.float64(0.3) > u,
        lambda u: np.float32(0.5) > u + 0.2,
        lambda u: not u >= 0.3,
        lambda u: u * 10 < 3,
        lambda u: np.float64(10) * u < np.float64(3),
        lambda u: u / 2 < 0.15,
        lambda u: 1 - u > 0.7,
        lambda u: u - 0.3 < 0,
        lambda u: -u > -0.3,
        lambda u: np.log(u) < np.log(0.3),
        lambda u: np.negative(np.log(u)) > -np.log(0.3),
        lambda u: bool((np.array([u], dtype=object) < np.array([0.3]))[0]),
    ],
)
def test_a_comparison_splits_with_the_right_chances(compare: Callable[[Any], bool]) -> None:
    found = law(lambda rng: bool(compare(rng.random())))
    assert found == pytest.approx({True: 0.3, False: 0.7}, abs=1e-6)


def test_a_number_remembers_what_was_said_of_it() -> None:
    """Below 0.5 is likelier once it is known to be below 0.8, and certain below 0.3."""

    def code(rng: Any) -> tuple[bool, bool, bool]:
        number = rng.random()
        return number < 0.8, number < 0.3, number < 0.5

    assert law(code) == pytest.approx(
        {
            (True, True, True): 0.3,
            (True, False, True): 0.2,
            (True, False, False): 0.3,
            (False, False, False): 0.2,
        }
    )


def test_numbers_are_independent() -> None:
    found = law(lambda rng: tuple(bool(u < 0.25) for u in rng.random(2)))
    assert found[True, True] == pytest.approx(1 / 16)
    assert sum(found.values()) == pytest.approx(1)


def test_choices() -> None:
    assert law(lambda rng: int(rng.choice(3, p=[0.5, 0.0, 0.5]))) == {0: 0.5, 2: 0.5}
    assert law(lambda rng: str(rng.choice(["a", "b"]))) == {"a": 0.5, "b": 0.5}
    assert law(lambda rng: rng.integers(2, 4)) == {2: 0.5, 3: 0.5}


def test_certain_outcomes_are_not_followed_in_vain() -> None:
    assert law(lambda rng: bool(rng.random() < 1.0)) == {True: 1.0}
    assert law(lambda rng: bool(rng.random() < 0.0)) == {False: 1.0}


@pytest.mark.parametrize(
    "code",
    [
        lambda rng: float(rng.random()),
        lambda rng: rng.random() == 0.5,
        lambda rng: bool(rng.random()),
        lambda rng: np.sqrt(rng.random()),
        lambda rng: rng.random() < rng.random(),
        lambda rng: rng.normal(),
        lambda rng: rng.choice(3, size=2),
        lambda rng: rng.choice(2, p=[0.0, 0.0]),
        lambda rng: rng.choice(2**40),
        lambda rng: rng.choice(np.arange(2000)),
        lambda rng: rng.integers(2**31),
        lambda rng: rng.integers(-(2**62), 2**62),
        lambda rng: rng.integers(5, size=3),
        lambda rng: rng.integers(5, endpoint=True),
        lambda rng: rng.random(2**40),
        lambda rng: rng.random((2**20, 2**20)),
    ],
)
def test_whatever_else_is_done_cannot_be_listed(code: Callable[[Any], Any]) -> None:
    with pytest.raises(CannotEnumerate):
        law(code)
