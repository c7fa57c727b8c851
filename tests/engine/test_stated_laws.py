"""A drafter's word about its own law is checked before a rule divides by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.drafters import Guess, Model, Turn
from forerun.models import TableModel

TARGET = TableModel.random(vocab_size=4, order=1, seed=0)
OTHER = TableModel.random(vocab_size=4, order=1, seed=1)


class Claiming(Model):
    """Draws from one law and claims another."""

    def __init__(self, claim: Callable[[Any], Any]) -> None:
        super().__init__(OTHER)
        self.claim = claim

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        guesses = super().propose(state, turns, shared_noise=shared_noise)
        return [
            guess if guess.probs is None else replace(guess, probs=self.claim(guess.probs))
            for guess in guesses
        ]


def nan(probs: Any) -> Any:
    changed = np.array(probs)
    changed[0, 0] = np.nan
    return changed


def negative(probs: Any) -> Any:
    return probs + np.array([0.6, -0.6, 0.0, 0.0])


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (lambda probs: probs * 2, "does not sum to 1"),
        (lambda probs: probs / 2, "does not sum to 1"),
        (nan, "has NaN or Inf"),
        (negative, "is negative"),
    ],
)
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_no_law_that_is_none_is_used(claim: Any, reason: str, rule: str) -> None:
    """A law scaled by 2 used to bias `ratio` by 0.25, silently."""
    drafter, sampling = Claiming(claim), fr.Sampling(seed=1)
    how: dict[str, Any] = {"rule": rule, "sampling": sampling, "max_new_tokens": 8}
    with pytest.warns(RuntimeWarning, match=reason):
        out = fr.generate(TARGET, [0], drafter=drafter, draft_length=3, **how)
    (note,) = out.stats.notes
    assert reason in note
    assert out.stats.drafted == 0
    assert (len(out.tokens), out.finish_reason) == (8, "length")
    plain = fr.generate(TARGET, [0], drafter=None, **how)
    assert out.tokens == plain.tokens


def test_a_law_within_rounding_is_used() -> None:
    drafter = Claiming(lambda probs: np.asarray(probs, np.float16))
    how: dict[str, Any] = {"rule": "ratio", "sampling": fr.Sampling(seed=1)}
    out = fr.generate(TARGET, [0], drafter=drafter, draft_length=3, max_new_tokens=8, **how)
    assert not out.stats.notes
    assert out.stats.drafted > 0
