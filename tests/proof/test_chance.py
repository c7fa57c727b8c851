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
        lambda rng: rng.uniform([0, 1], 2),
        lambda rng: rng.binomial(3, 0.5),
        lambda rng: rng.multinomial(1, [0.5, 0.5], size=3),
        lambda rng: rng.choice(3, 2, replace=False, shuffle=False),
        lambda rng: np.argmax(rng.exponential(size=3)),
        lambda rng: np.argmin(rng.random(3)),
        lambda rng: [rng.random() for _ in range(1000)] and [rng.choice(2) for _ in range(1000)],
        lambda rng: rng.choice(2**40),
        lambda rng: rng.choice(np.arange(2000)),
        lambda rng: rng.integers(2**31),
        lambda rng: rng.integers(-(2**62), 2**62),
        lambda rng: rng.random(2**40),
        lambda rng: rng.random((2**20, 2**20)),
    ],
)
def test_whatever_else_is_done_cannot_be_listed(code: Callable[[Any], Any]) -> None:
    with pytest.raises(CannotEnumerate):
        law(code)


def odds(weights: Any) -> dict[int, float]:
    return {index: weight / sum(weights) for index, weight in enumerate(weights) if weight > 0}


WEIGHTS = np.array([0.5, 0.0, 1.5, 2.0])


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: np.argmin(rng.exponential(size=4) / WEIGHTS),
        lambda rng: np.argmin(rng.standard_exponential(4) / WEIGHTS),
        lambda rng: (WEIGHTS / rng.exponential(size=4)).argmax(),
        lambda rng: np.argmax(np.log(WEIGHTS) + rng.gumbel(size=4)),
        lambda rng: np.argmax(np.log(WEIGHTS) - np.log(-np.log(rng.random(4)))),
        lambda rng: np.argmin(-np.log(rng.random(4)) / WEIGHTS),
        lambda rng: np.argmin(-np.log(1 - rng.random(4)) / WEIGHTS),
        lambda rng: (WEIGHTS[None] / rng.exponential(3.0, size=(1, 4))).argmax(axis=-1)[0],
        lambda rng: rng.multinomial(1, WEIGHTS / 4).argmax(),
        lambda rng: rng.choice(4, size=(1,), p=WEIGHTS / 4)[0],
    ],
)
def test_a_race_is_won_in_proportion(draw: Callable[[Any], Any]) -> None:
    assert law(lambda rng: int(draw(rng))) == pytest.approx(odds(WEIGHTS))


def test_a_race_may_not_be_run_twice_with_the_same_numbers() -> None:
    def code(rng: Any) -> Any:
        noise = rng.exponential(size=2)
        return np.argmin(noise), np.argmin(noise)

    with pytest.raises(CannotEnumerate, match=r"in a race already|no race"):
        law(code)


@pytest.mark.parametrize(
    ("draw", "chance"),
    [
        (lambda rng: rng.exponential(2.0) < 1.0, 1 - np.exp(-0.5)),
        (lambda rng: rng.gumbel() < 0.3, np.exp(-np.exp(-0.3))),
        (lambda rng: rng.uniform(1, 3) < 1.5, 0.25),
        (lambda rng: 1 / rng.random() > 4, 0.25),
        (lambda rng: rng.binomial(1, 0.25) == 1, 0.25),
    ],
)
def test_other_numbers_are_compared(draw: Callable[[Any], Any], chance: float) -> None:
    assert law(lambda rng: bool(draw(rng))) == pytest.approx({True: chance, False: 1 - chance})


def test_several_at_once() -> None:
    pairs = law(lambda rng: tuple(map(int, rng.choice(3, 2, False, p=[0.5, 0.25, 0.25]))))
    assert pairs[0, 1] == pytest.approx(0.25)
    assert pairs[1, 0] == pytest.approx(1 / 6)
    assert law(lambda rng: tuple(map(int, rng.integers(0, 1, 2, endpoint=True))))[1, 1] == 0.25
    counts = law(lambda rng: tuple(map(int, rng.multinomial(2, [0.5, 0.5]))))
    assert counts == {(2, 0): 0.25, (1, 1): 0.5, (0, 2): 0.25}


@pytest.mark.parametrize(
    "ask",
    [
        lambda rng: rng.choice(2, p=[0.5, 0.4]),
        lambda rng: rng.choice(2, p=[1.5, -0.5]),
        lambda rng: rng.choice(3, p=[0.5, 0.5]),
        lambda rng: rng.choice(2, p=[float("nan"), 0.5]),
        lambda rng: rng.choice(2, p=[[0.5, 0.5]]),
        lambda rng: rng.choice(2, p=[0.0, 0.0]),
        lambda rng: rng.choice(0),
        lambda rng: rng.choice(2, 3, replace=False),
        lambda rng: rng.choice(3, 2, replace=False, p=[1.0, 0.0, 0.0]),
        lambda rng: rng.integers(3, 3),
        lambda rng: rng.multinomial(1, [0.9, 0.9, 0.1]),
        lambda rng: rng.binomial(1, 1.5),
        lambda rng: rng.exponential(-1.0),
        lambda rng: rng.random(-1),
    ],
)
def test_what_numpy_refuses_is_refused_with_its_words(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError) as real:
        ask(np.random.default_rng(1))
    with pytest.raises(ValueError) as followed:
        law(ask)
    assert str(followed.value) == str(real.value)
