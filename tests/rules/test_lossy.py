"""The lossy rules: labelled, never a default, and lossy in the way they say."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import forerun as fr
from forerun import rules
from forerun.base.arrays import to_numpy
from forerun.proof.cases import contextual
from forerun.proof.law import expected_accepted, law, target_law
from instances import random_instance
from libraries import Library

LOSSY = rules.names(lossless=False)


def test_they_are_labelled_and_opt_in() -> None:
    assert LOSSY == ["lenient", "typical", "threshold"]
    assert inspect.signature(fr.verify).parameters["rule"].default == "match"
    assert not any(rules.get(name).lossless for name in LOSSY)
    verdict = fr.verify(fr.Draft.point([[0]]), np.full((1, 2, 2), 0.5), rule="typical")
    assert (verdict.rule, verdict.lossless) == ("typical", False)


@pytest.mark.slow  # the largest bias of each, as docs/rules.md states it, is a test by default
@pytest.mark.parametrize("rule", LOSSY)
def test_each_is_seen_to_be_lossy(rule: str) -> None:
    found = fr.certify(rule)
    assert not found.lossless
    assert found.bias > 0.1


def test_lenient_accepts_more_within_its_bound() -> None:
    """More tokens than `ratio`, and no token more likely than p / lenience."""
    for seed in range(10):
        target, draft = contextual(3, seed), contextual(3, seed + 50)
        lenient = rules.get("lenient", lenience=0.5)
        gained = expected_accepted(lenient, target, draft, 2)
        assert gained > expected_accepted("ratio", target, draft, 2)
        first = law(lenient, target, draft, draft_length=2, length=1)
        assert np.all(first <= target_law(target, 1) / 0.5 + 1e-12)


def test_lenience_1_is_ratio(lib: Library) -> None:
    made = random_instance(30, 50, 3, 20, np.float32)
    target = lib.array(made.target)
    found = fr.verify(made.sampled(lib), target, rule=rules.get("lenient", lenience=1.0), seed=4)
    wanted = fr.verify(made.sampled(lib), target, rule="ratio", seed=4)
    assert found.tokens() == wanted.tokens()


def test_threshold_with_both_dials_at_1_is_lossless() -> None:
    assert fr.certify(rules.get("threshold", single=1.0, accumulated=1.0)).lossless


def test_threshold_keeps_what_is_likely_enough(lib: Library) -> None:
    target = lib.array(np.tile(np.array([0.5, 0.3, 0.2], dtype=np.float32), (300, 2, 1)))
    tokens = lib.array(np.zeros((300, 1), dtype=np.int64))
    verdict = fr.verify(fr.Draft.point(tokens), target, rule="threshold", seed=list(range(300)))
    assert int(lib.xp.min(verdict.num_accepted)) == 1  # p = 0.5 passes the default bar


def test_typical_keeps_what_passes_the_bar(lib: Library) -> None:
    """The bar is min(0.09, 0.3 exp(-H)): 0.09 for a sure law, 0.3 / 50 for a flat one."""
    sure, flat = np.full(50, 0.1 / 49), np.full(50, 1 / 50)
    sure[0] = 0.9
    target = np.stack([sure, flat, flat])[None].astype(np.float32)
    cases = {(0, 7): 2, (0, 0): 2, (3, 7): 0}
    for tokens, kept in cases.items():
        verdict = fr.verify(
            fr.Draft.point(lib.array([list(tokens)])), lib.array(target), rule="typical"
        )
        assert to_numpy(verdict.num_accepted).tolist() == [kept]
