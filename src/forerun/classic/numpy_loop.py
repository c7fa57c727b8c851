"""Speculative sampling as one loop over two model functions: `speculative_sampling`.

The task: extend ids x by N tokens.  Each round drafts K tokens one by one, scores them all in
one call of the target, and keeps what the `ratio` rule accepts plus one extra token.  A model is
a function from ids (L,) to probabilities (L, V), whose row i is the law of the token after
x[: i + 1].

What differs: the published loop can return up to K tokens too many, because its last round may
accept more than is still wanted.  Here a round drafts at most one token less than is missing, which
leaves room for the extra token, so that exactly N come out and no draft is wasted.  Shortening is
exact, because it depends on the number of tokens and never on the tokens themselves.

One seed is taken from NumPy's global generator per call; every number after that is a function of
it, of the position where the round starts, and of the slot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forerun.base.arrays import HostArray, namespace_of
from forerun.base.errors import InputError, explain
from forerun.classic.numpy_verify import fresh_seed
from forerun.classic.rows import as_table
from forerun.noise.race import Purpose, draw, uniform
from forerun.rules.types import Draft
from forerun.theory.arguments import as_count, as_law
from forerun.verification import verify

ModelFunction = Callable[[HostArray], HostArray]
"""A function from ids (L,) to probabilities (L, V)."""


def speculative_sampling(
    x: HostArray, draft_model: ModelFunction, target_model: ModelFunction, N: int, K: int
) -> HostArray:
    """The ids x, extended by exactly N tokens that follow the target's law; K: the most drafts a
    round."""
    x = _prompt(x)
    end = len(x) + as_count("N", N)
    longest = as_count("K", K)
    seed = fresh_seed()
    while len(x) < end:
        x_draft, rows = x, list[HostArray]()
        for slot in range(min(longest, end - len(x) - 1)):
            rows.append(_last_rows(draft_model, x_draft, 1, "draft_model")[0])
            x_draft = np.append(x_draft, _sample(rows[-1], seed, len(x), slot))
        target = _last_rows(target_model, x_draft, len(rows) + 1, "target_model")
        draft = as_table("draft_model", rows, target.shape[1])
        guess = Draft.sampled(x_draft[len(x) :], draft[None])
        verdict = verify(guess, target, rule="ratio", seed=seed, positions=[len(x)])
        x = np.append(x, verdict.tokens()[0])
    return x


def _sample(row: HostArray, seed: int, first: int, slot: int) -> int:
    """A draft token drawn from its row (V,), with the drafter's own noise."""
    unit = np.reshape(uniform(seed, first, slot, Purpose.DRAFT), (1,))
    return int(draw(namespace_of(), row[None, :], unit)[0])


def _last_rows(model: ModelFunction, ids: HostArray, count: int, name: str) -> HostArray:
    """The last `count` rows of a model's probabilities for ids, checked and normalised."""
    laws = np.asarray(model(ids))
    if laws.ndim != 2 or len(laws) != len(ids):
        wrong = f"{name} must return one row of probabilities per id."
        cure = f"For {len(ids)} ids that is ({len(ids)}, V), row i for the token after id i."
        raise InputError(explain(wrong, f"shape {laws.shape}", cure))
    return np.asarray(as_law(name, laws[-count:]))


def _prompt(x: HostArray) -> HostArray:
    """The prompt as an array of ids; InputError unless it is one row of integers, not empty."""
    ids = np.asarray(x)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        cure = "Pass at least one id: a model says nothing about the token after no tokens."
        received = f"{ids.dtype} of shape {ids.shape}"
        raise InputError(explain("x must be a list of token ids.", received, cure))
    return ids.astype(np.int64)
