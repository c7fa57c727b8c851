"""`speculative_decode` with the caller's coins, against rounds worked out by hand."""

import inspect
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.classic.coin_round import speculative_decode

# slot 0: token 0 has chance 0.4 / 0.5 = 0.8, tokens 1 and 2 have 1; (p - q)+ is largest at 1
# slot 1: token 1 has chance 0.25 / 0.5 = 0.5, token 0 has 1; (p - q)+ is largest at 0
# slot 2: token 2 has chance 0 / 0.5 = 0, token 0 has 1; (p - q)+ is 0.25 at 0 and 1, so 0
DRAFT = [[0.5, 0.3, 0.2], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
TARGET = [[0.4, 0.4, 0.2], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]

TABLE = [
    # draft tokens, coins -> emitted, acceptance rate
    ([0, 1, 0], [0.79, 0.49, 0.99], [0, 1, 0, 2], 1.0),  # all accepted, bonus 2
    ([0, 1, 0], [0.8, 0.0, 0.0], [1], 0.0),  # a coin equal to the chance refuses
    ([0, 1, 0], [0.1, 0.5, 0.0], [0, 0], 0.3333),
    ([1, 0, 0], [0.999, 0.999, 0.999], [1, 0, 0, 2], 1.0),  # p >= q is never refused
    ([1, 1, 2], [0.3, 0.3, 0.0], [1, 1, 0], 0.6667),  # p = 0 is refused by any coin
    ([2, 1, 1], [0.5, 0.9, 0.1], [2, 0], 0.3333),
]


def rows(table: list[list[float]]) -> list[Any]:
    return [np.array(row) for row in table]


def test_signature() -> None:
    parameters = list(inspect.signature(speculative_decode).parameters)
    assert parameters == ["draft_probs", "target_probs", "draft_tokens", "random_coins"]


@pytest.mark.parametrize(("tokens", "coins", "emitted", "rate"), TABLE)
def test_rounds_by_hand(
    tokens: list[int], coins: list[float], emitted: list[int], rate: float
) -> None:
    found = speculative_decode(rows(DRAFT), rows(TARGET), tokens, coins)
    assert found == {
        "accepted_tokens": emitted,
        "num_generated": len(emitted),
        "acceptance_rate": rate,
    }
    assert all(type(token) is int for token in found["accepted_tokens"])
    assert type(found["acceptance_rate"]) is float


def test_no_draft_takes_the_likeliest_bonus() -> None:
    found = speculative_decode([], rows(TARGET[:1]), [], [])
    assert found == {"accepted_tokens": [0], "num_generated": 1, "acceptance_rate": 0.0}


def test_equal_laws_accept_whatever_the_coins() -> None:
    found = speculative_decode(rows(TARGET[:2]), rows(TARGET[:3]), [2, 1], [0.999999, 0.999999])
    assert found["acceptance_rate"] == 1.0


def test_disjoint_supports_refuse_whatever_the_coins() -> None:
    found = speculative_decode(rows([[1.0, 0.0]]), rows([[0.0, 1.0]] * 2), [0], [0.0])
    assert found == {"accepted_tokens": [1], "num_generated": 1, "acceptance_rate": 0.0}


def test_arrays_and_single_precision_are_welcome() -> None:
    draft: Any = np.array(DRAFT, dtype=np.float32)
    target: Any = np.array(TARGET, dtype=np.float32)
    tokens: Any = np.array([0, 1, 0])
    coins: Any = np.array([0.1, 0.1, 0.1])
    assert speculative_decode(draft, target, tokens, coins)["accepted_tokens"] == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("draft", "target", "tokens", "coins", "message"),
    [
        (DRAFT, TARGET[:3], [0, 1, 0], [0.1] * 3, "do not fit"),
        (DRAFT, [], [0, 1, 0], [0.1] * 3, "wrong shape"),
        (DRAFT, TARGET, [0, 1, 0], [0.1] * 2, "random_coins"),
        (DRAFT, TARGET, [0, 1, 0], [0.1, 0.1, float("nan")], "random_coins"),
        (DRAFT, TARGET, [0, 1, 0], [0.1, 0.1, -0.1], "random_coins"),
        (DRAFT, TARGET, [0, 1, 3], [0.1] * 3, "not in the vocabulary"),
        ([[0.0, 1.0, 0.0]] * 3, TARGET, [0, 1, 1], [0.1] * 3, "draft probability 0"),
        ([[0.5, 0.5]] * 3, TARGET, [0, 1, 0], [0.1] * 3, "wrong shape"),
    ],
)
def test_bad_input(draft: Any, target: Any, tokens: Any, coins: Any, message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        speculative_decode(rows(draft), rows(target), tokens, coins)
