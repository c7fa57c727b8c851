"""`ratio`: how often it accepts, and the edges where the residual is thin."""

from __future__ import annotations

import numpy as np
import pytest

import forerun as fr
from forerun.base.arrays import to_numpy
from forerun.proof.law import expected_accepted
from instances import random_instance
from libraries import Library


def test_one_token_is_accepted_with_the_overlap_of_the_laws() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        target, draft = rng.dirichlet(np.full(4, 0.5), 2)
        overlap = np.minimum(target, draft).sum()
        found = expected_accepted("ratio", target[None], draft[None], 1)
        assert found == pytest.approx(overlap, abs=1e-12)


def test_a_drafter_that_equals_its_target_is_never_refused(lib: Library) -> None:
    """Also in float32, and also when the coin is as close to 1 as coins come."""
    made = random_instance(1, 400, 4, 30, np.float32)
    draft = fr.Draft.sampled(lib.array(made.tokens), lib.array(made.target[:, :-1]))
    verdict = fr.verify(draft, lib.array(made.target), rule="ratio", seed=list(range(400)))
    assert int(lib.xp.min(verdict.num_accepted)) == 4


def test_nothing_in_common_is_never_accepted(lib: Library) -> None:
    target = np.zeros((200, 2, 4), dtype=np.float32)
    target[..., 1] = 1.0
    draft = lib.array(np.tile(np.array([0.5, 0, 0.5, 0], dtype=np.float32), (200, 1, 1)))
    tokens = lib.array(np.tile([[0], [2]], (100, 1)))
    verdict = fr.verify(
        fr.Draft.sampled(tokens, draft), lib.array(target), rule="ratio", seed=list(range(200))
    )
    assert int(lib.xp.max(verdict.num_accepted)) == 0
    assert int(lib.xp.min(verdict.extra)) == int(lib.xp.max(verdict.extra)) == 1


def test_a_refusal_without_residual_falls_back_to_the_target(lib: Library) -> None:
    """Rows that rounding made smaller everywhere: refused now and then, with nothing owed."""
    count = 8000
    draft = np.full((count, 1, 4), 0.25, dtype=np.float32)
    target = np.full((count, 2, 4), 0.2498, dtype=np.float32)
    verdict = fr.verify(
        fr.Draft.sampled(lib.array(np.zeros((count, 1), dtype=np.int64)), lib.array(draft)),
        lib.array(target),
        rule="ratio",
        seed=list(range(count)),
    )
    refused = to_numpy(verdict.num_accepted) == 0
    assert 1 <= refused.sum() <= 30  # 6.4 expected
    assert set(to_numpy(verdict.extra)[refused]) <= {0, 1, 2, 3}
    assert len(set(to_numpy(verdict.extra)[refused])) > 1
