"""Wrong verifiers in NumPy: each leaves the textbook's loop at one place."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw(rng: Any, weights: Any) -> int:
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def left_over(p: Any, q: Any) -> Any:
    return np.maximum(p - q, 0)


def resamples_from_p(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, p[i])]
    return [*tokens, draw(rng, p[-1])]


def bare_probability(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]) + 1e-300)]
    return [*tokens, draw(rng, p[-1])]


def absolute_residual(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, np.abs(p[i] - q[i]))]
    return [*tokens, draw(rng, p[-1])]


def bonus_by_length(
    draft_tokens: list[int],
    draft_probs: list[Any],
    target_probs: list[Any],
    vocab_size: int,
) -> list[int]:
    """An exercise's signature and its slip: K tokens are out after a refusal in the last slot."""
    out: list[int] = []
    for i, x in enumerate(draft_tokens):
        if np.random.random() < target_probs[i][x] / draft_probs[i][x]:  # noqa: NPY002
            out.append(x)
        else:
            weights = np.maximum(target_probs[i] - draft_probs[i], 0)
            out.append(int(np.random.choice(vocab_size, p=weights / weights.sum())))  # noqa: NPY002
            break
    if len(out) == len(draft_tokens):
        out.append(int(np.random.choice(vocab_size, p=target_probs[-1])))  # noqa: NPY002
    return out


def next_rows(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Slots are judged by the target's row one further on."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i + 1, x] / q[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i + 1], q[i]))]
    return [*tokens, draw(rng, p[-1])]


def one_coin(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """One number for all slots."""
    u = rng.random()
    slots = np.arange(len(tokens))
    kept = int(np.cumprod(u < p[slots, tokens] / q[slots, tokens]).sum())
    row = p[-1] if kept == len(tokens) else left_over(p[kept], q[kept])
    return [*tokens[:kept], draw(rng, row)]


def likeliest_correction(draft_probs: Any, target_probs: Any, draft_tokens: Any, random_coins: Any):
    """The exercise with given coins, whose correction and bonus are an argmax."""
    out: list[int] = []
    for i, x in enumerate(draft_tokens):
        if random_coins[i] < min(1.0, target_probs[i][x] / draft_probs[i][x]):
            out.append(int(x))
        else:
            out.append(int(np.argmax(np.maximum(target_probs[i] - draft_probs[i], 0))))
            break
    else:
        out.append(int(np.argmax(target_probs[-1])))
    return {"accepted_tokens": out, "num_generated": len(out), "acceptance_rate": 0.0}


def goes_on_after_refusal(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    out = []
    for i, x in enumerate(tokens):
        if rng.random() < p[i, x] / q[i, x]:
            out.append(int(x))
        else:
            out.append(draw(rng, left_over(p[i], q[i])))
    return [*out, draw(rng, p[-1])]


def unnormalised(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The residual is handed to `choice` as it is: NumPy raises."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], int(rng.choice(p.shape[1], p=left_over(p[i], q[i])))]
    return [*tokens, draw(rng, p[-1])]


def negative_weights(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The residual is divided by its sum and never clipped: NumPy raises."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            residual = p[i] - q[i]
            residual = residual / np.abs(residual).sum()
            residual[x] += 1 - residual.sum()
            return [*tokens[:i], int(rng.choice(p.shape[1], p=residual))]
    return [*tokens, draw(rng, p[-1])]


def too_short(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Zeros are dropped from the weights and not from the tokens: NumPy raises."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            weights = left_over(p[i], q[i])
            weights = weights[weights > 0]
            return [*tokens[:i], int(rng.choice(p.shape[1], p=weights / weights.sum()))]
    return [*tokens, draw(rng, p[-1])]


def four_slots(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """A buffer of four slots: what is drafted beyond is committed unverified."""
    for i, x in enumerate(tokens[:4]):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]))]
    return [*tokens, draw(rng, p[-1])]


def top_eight(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Corrections come from the eight likeliest tokens."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            weights = left_over(p[i], q[i])
            weights[np.argsort(weights)[:-8]] = 0
            return [*tokens[:i], draw(rng, weights)]
    return [*tokens, draw(rng, p[-1])]


def skips_ties(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Rows without a single likeliest token are taken for a failed pass, and the draft is kept."""
    for i, x in enumerate(tokens):
        if np.sum(p[i] == p[i].max()) > 1:
            continue
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]))]
    return [*tokens, draw(rng, p[-1])]


def uniform_fallback(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Equal probabilities are refused (`<` for `<=` of p and q), the empty residual is uniform."""
    for i, x in enumerate(tokens):
        if p[i, x] > q[i, x] or (p[i, x] < q[i, x] and rng.random() < p[i, x] / q[i, x]):
            continue
        weights = left_over(p[i], q[i])
        if weights.sum() == 0:
            weights = np.ones_like(weights)
        return [*tokens[:i], draw(rng, weights)]
    return [*tokens, draw(rng, p[-1])]


def greedy_without_draft(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """A plain step takes the likeliest token."""
    if len(tokens) == 0:
        return [int(np.argmax(p[0]))]
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]))]
    return [*tokens, draw(rng, p[-1])]


def sure_target(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """A shortcut for certain rows, which forgets to look at the draft."""
    for i, x in enumerate(tokens):
        if p[i].max() < 0.999 and rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]))]
    return [*tokens, draw(rng, p[-1])]


def impossible_tokens(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """A guard against zeros, turned the wrong way."""
    for i, x in enumerate(tokens):
        ratio = p[i, x] / q[i, x] if p[i, x] > 0 else 1.0
        if rng.random() >= ratio:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]))]
    return [*tokens, draw(rng, p[-1])]


def ratio_residual(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The residual is (p / q - 1)+ instead of (p - q)+."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, np.maximum(p[i] / np.maximum(q[i], 1e-9) - 1, 0))]
    return [*tokens, draw(rng, p[-1])]


def coin_used_twice(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The number that refused a token also draws the correction."""
    for i, x in enumerate(tokens):
        u = rng.random()
        if u >= p[i, x] / q[i, x]:
            cdf = np.cumsum(left_over(p[i], q[i]))
            return [*tokens[:i], int(np.searchsorted(cdf / cdf[-1], u, side="right"))]
    return [*tokens, draw(rng, p[-1])]


def cdf_of_less_than_one(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The residual is searched undivided, and the last token gets what is missing."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            cdf = np.cumsum(left_over(p[i], q[i]))
            return [*tokens[:i], min(int(np.searchsorted(cdf, rng.random())), len(cdf) - 1)]
    return [*tokens, draw(rng, p[-1])]


def bonus_from_row_before(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            return [*tokens[:i], draw(rng, left_over(p[i], q[i]))]
    return [*tokens, draw(rng, p[max(len(tokens) - 1, 0)])]


def block_from_the_left(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Block verification whose coins are tossed from the first slot on."""
    reach = 1.0
    for i, x in enumerate(tokens):
        before, reach = reach, min(reach * p[i, x] / q[i, x], 1.0)
        if rng.random() >= reach:
            owed = np.maximum(before * p[i] - q[i], 0)
            return [*tokens[:i], draw(rng, owed if owed.sum() > 0 else p[i])]
    return [*tokens, draw(rng, p[-1])]


def large_epsilon(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / (q[i, x] + 1e-3):
            weights = left_over(p[i], q[i])
            return [*tokens[:i], draw(rng, weights if weights.sum() > 0 else p[i])]
    return [*tokens, draw(rng, p[-1])]


def one_in_a_million(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Coins are rounded to six digits, downwards."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x] * (1 - 1e-6):
            weights = left_over(p[i], q[i])
            return [*tokens[:i], draw(rng, weights if weights.sum() > 0 else p[i])]
    return [*tokens, draw(rng, p[-1])]


WRONG = (
    resamples_from_p,
    bare_probability,
    absolute_residual,
    bonus_by_length,
    next_rows,
    one_coin,
    likeliest_correction,
    goes_on_after_refusal,
    unnormalised,
    negative_weights,
    too_short,
    four_slots,
    top_eight,
    skips_ties,
    uniform_fallback,
    greedy_without_draft,
    sure_target,
    impossible_tokens,
    ratio_residual,
    coin_used_twice,
    cdf_of_less_than_one,
    bonus_from_row_before,
    block_from_the_left,
    large_epsilon,
    one_in_a_million,
)
