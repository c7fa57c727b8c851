"""Exact laws against formulas and enumerations that share no code with them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import forerun as fr
from forerun import rules
from forerun.certification.cases import contextual
from forerun.law import Prefix, expected_accepted

EXACT = 1e-12
P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.2, 0.6])


def test_the_targets_law_is_the_product_of_its_rows() -> None:
    model = contextual(3, 5)
    found = fr.target_law(model, 3)
    assert found.shape == (3, 3, 3)
    for tokens in itertools.product(range(3), repeat=3):
        chance = np.prod([model(tokens[:i])[tokens[i]] for i in range(3)])
        assert found[tokens] == pytest.approx(chance, abs=EXACT)


@pytest.mark.parametrize("lenience", [0.25, 0.5, 1.0])
def test_a_lossy_law_is_the_one_on_paper(lenience: float) -> None:
    """min(q, p / l) accepted, the rest from (p / l - q)+: a law that is wrong in a known way."""
    accepted = np.minimum(Q, P / lenience)
    owed = np.maximum(P / lenience - Q, 0)
    wanted = accepted + (1 - accepted.sum()) * owed / owed.sum()
    rule = rules.get("lenient", lenience=lenience)
    found = fr.law(rule, P[None], Q[None], length=1)
    assert found == pytest.approx(wanted, abs=EXACT)
    assert (np.abs(found - P).max() < EXACT) == (lenience == 1.0)


def test_the_law_of_threshold_on_paper() -> None:
    """p = 0.5 passes the bar, so a drafter that always says 0 gets its way."""
    found = fr.law("threshold", P[None], np.array([[1.0, 0, 0]]), length=1, drawn="point")
    assert found == pytest.approx([1.0, 0.0, 0.0], abs=EXACT)


@pytest.mark.parametrize("rule", rules.names())
def test_a_law_has_mass_1_over_the_tokens_asked_for(rule: str) -> None:
    found = fr.law(rule, np.array([P, Q, P]), np.array([Q, P]))
    assert found.shape == (3,) * 3  # K + 1 by default
    assert found.sum() == pytest.approx(1.0, abs=EXACT)
    longer = fr.law(rule, np.array([P, Q, P]), np.array([Q, P]), length=4)
    assert longer.sum(axis=3) == pytest.approx(found, abs=EXACT)


def test_rows_given_by_position_repeat_the_last() -> None:
    found = fr.target_law(np.array([P, Q]), 3)
    assert found == pytest.approx(np.einsum("i,j,k", P, Q, Q), abs=EXACT)


def test_expected_acceptance_of_one_token() -> None:
    assert expected_accepted("match", P[None], Q[None], 1) == pytest.approx((P * Q).sum())
    assert expected_accepted("ratio", P[None], Q[None], 1) == pytest.approx(np.minimum(P, Q).sum())


def test_the_draft_length_may_follow_the_text() -> None:
    """A law-only rule that is told K by what was emitted, not by what was drafted."""
    seen: set[tuple[Prefix, int]] = set()

    def lengths(prefix: Prefix) -> int:
        count = len(prefix) % 2 + 1
        seen.add((prefix, count))
        return count

    model = contextual(2, 9)
    found = fr.law("block", model, contextual(2, 10), draft_length=lengths, length=3)
    assert found == pytest.approx(fr.target_law(model, 3), abs=EXACT)
    assert {count for _, count in seen} == {1, 2}


def test_bad_arguments() -> None:
    with pytest.raises(fr.InputError, match=r"K is not known.*draft_length=K"):
        fr.law("match", P[None], contextual(3, 1))
    with pytest.raises(fr.InputError, match=r"target rows have a wrong shape.*\(3,\).*\(N, V\)"):
        fr.law("match", P, Q[None])
    with pytest.raises(fr.InputError, match=r"drawn is not known.*'guessed'"):
        fr.law("match", P[None], Q[None], drawn="guessed")
    with pytest.raises(fr.InputError, match="does not sum to 1"):
        fr.law("match", 2 * P[None], Q[None])
