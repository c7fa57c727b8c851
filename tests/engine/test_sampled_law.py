"""The law-only rules through the engine with the noise that ships: what the lists cannot see.

The enumerations replace the noise, so they take its numbers to be as independent as their
addresses say.  Here texts are drawn with real numbers, and the addresses themselves are listed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun import Sampling
from forerun.drafters import Model, forks
from forerun.models import TableModel
from forerun.proof.broken import BlockAtOneAddress
from forerun.rules import base as counter_noise
from libraries import largest_bias

LENGTH, CELLS = 3, 2**3
TARGET = TableModel(2, 1, {(): [0.3, 0.7], (0,): [0.3, 0.7], (1,): [0.32, 0.68]})
DRAFT = TableModel(2, 1, {(): [0.1, 0.9], (0,): [0.1, 0.9], (1,): [0.11, 0.89]})
FORK = fr.Tree((-1, -1, 0))
RULES: list[tuple[str, dict[str, Any]]] = [
    ("ratio", {"draft_length": 3}),
    ("block", {"draft_length": 3}),
    ("siblings", {"tree": FORK}),
    ("traversal", {"tree": FORK}),
]
NUM_TEXTS, ODDS, MISS = 650, 1e-4, 1e-3
"""A correct rule fails with probability ODDS at most, over the choice of the seed."""


def detectable(num_texts: int, odds: float) -> float:
    """A total variation this large is missed with probability MISS at most (Hoeffding)."""
    return largest_bias(CELLS, num_texts, odds) + math.sqrt(math.log(1 / MISS) / (2 * num_texts))


def wanted() -> dict[tuple[int, ...], float]:
    texts = itertools.product(range(2), repeat=LENGTH)
    return {
        text: math.prod(TARGET.probs([0, *text[:place]])[text[place]] for place in range(LENGTH))
        for text in texts
    }


def bias(rule: Any, num_texts: int, **shape: Any) -> float:
    """Total variation between the first three tokens of many texts and the target's law."""
    answers = fr.generate(
        TARGET, [0], drafter=Model(DRAFT), rule=rule, max_new_tokens=LENGTH + 1,
        sampling=Sampling(seed=23, n=num_texts), batch_size=200, **shape,
    )  # fmt: skip
    counts = Counter(tuple(answer.tokens[:LENGTH]) for answer in answers)
    law = wanted()
    assert sum(counts[text] for text in law) == num_texts
    return sum(abs(counts[text] / num_texts - chance) for text, chance in law.items()) / 2


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        pytest.param(rule, shape, id=rule, marks=pytest.mark.slow if rule == "traversal" else ())
        for rule, shape in RULES  # `test_joint_law_trees` has the law of all of them, exactly
    ],
)
def test_three_tokens_with_the_real_noise(rule: str, shape: dict[str, Any]) -> None:
    """Fails for a correct rule in 1 of 10,000 seeds; misses a bias of 0.18 in 1 of 1000."""
    assert detectable(NUM_TEXTS, ODDS) < 0.18
    assert bias(rule, NUM_TEXTS, **shape) <= largest_bias(CELLS, NUM_TEXTS, ODDS)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "shape"), RULES, ids=[rule for rule, _ in RULES])
def test_three_tokens_of_many_texts(rule: str, shape: dict[str, Any]) -> None:
    """Fails for a correct rule in 1 of a million seeds; misses a bias of 0.04 in 1 of 1000."""
    assert detectable(20_000, 1e-6) < 0.04
    assert bias(rule, 20_000, **shape) <= largest_bias(CELLS, 20_000, 1e-6)


def test_coins_at_one_address_show() -> None:
    """Block verification whose coins are all the same number, by its exact law and by texts."""
    rows = [lambda prefix, table=table: table.probs([0, *prefix]) for table in (TARGET, DRAFT)]
    law = fr.law(
        BlockAtOneAddress(), *rows, length=LENGTH, draft_length=lambda prefix: LENGTH - len(prefix)
    )
    exact = np.abs(law - fr.target_law(rows[0], LENGTH)).sum() / 2
    assert exact > detectable(NUM_TEXTS, ODDS)
    found = bias(BlockAtOneAddress(), NUM_TEXTS, draft_length=3)
    assert found > largest_bias(CELLS, NUM_TEXTS, ODDS)
    assert found == pytest.approx(exact, abs=largest_bias(CELLS, NUM_TEXTS, ODDS))


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every (purpose, position, slot) that rules and drafters ask the generator for."""
    asked: list[tuple[int, ...]] = []
    for module in (counter_noise, forks):

        def coin(*address: Any, inner: Any = module.coin) -> Any:
            _, _, positions, slots, purpose, *_ = address
            asked.extend((int(purpose), int(positions[0]), slot) for slot in slots)
            return inner(*address)

        monkeypatch.setattr(module, "coin", coin)
    return asked


@pytest.mark.parametrize(("rule", "shape"), RULES, ids=[rule for rule, _ in RULES])
def test_no_address_is_asked_twice(
    addresses: list[tuple[int, ...]], rule: str, shape: dict[str, Any]
) -> None:
    """Over a whole text: drafts, coins and residual draws."""
    how: dict[str, Any] = {"max_new_tokens": 40, "sampling": Sampling(seed=5), **shape}
    fr.generate(TARGET, [0], drafter=Model(DRAFT), rule=rule, **how)
    assert len({purpose for purpose, _, _ in addresses}) == 3
    assert len(addresses) > 40
    assert len(set(addresses)) == len(addresses)
