"""Right verifiers in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np


def loop(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The textbook's loop."""
    out = []
    for i, x in enumerate(tokens):
        if rng.random() < min(1.0, p[i][x] / q[i][x]):
            out.append(int(x))
            continue
        residual = np.maximum(p[i] - q[i], 0)
        out.append(int(rng.choice(len(residual), p=residual / residual.sum())))
        return out
    out.append(int(rng.choice(p.shape[1], p=p[-1])))
    return out


def vectorised(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """All coins at once, and inverse CDF sampling."""
    k = len(tokens)
    slots = np.arange(k)
    accept = rng.random(k) <= p[slots, tokens] / q[slots, tokens]
    kept = int(np.cumprod(accept).sum())
    row = p[k] if kept == k else np.clip(p[kept] - q[kept], 0, None)
    cdf = np.cumsum(row)
    extra = np.searchsorted(cdf, rng.random() * cdf[-1], side="right")
    return [*map(int, tokens[:kept]), int(extra)]


def gumbel(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Residual and bonus by the Gumbel-max trick."""

    def sample(weights: Any) -> int:
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(weights) + rng.gumbel(size=len(weights))))

    for i, x in enumerate(tokens):
        if rng.uniform() * q[i, x] > p[i, x]:
            return [*map(int, tokens[:i]), sample(np.maximum(p[i] - q[i], 0))]
    return [*map(int, tokens), sample(p[-1])]


def race(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Residual and bonus by a race of exponentials."""

    def sample(weights: Any) -> int:
        with np.errstate(divide="ignore"):
            return int(np.argmin(rng.exponential(size=len(weights)) / weights))

    for i, x in enumerate(tokens):
        if rng.random() > p[i, x] / q[i, x]:
            return [*map(int, tokens[:i]), sample(np.maximum(p[i] - q[i], 0))]
    return [*map(int, tokens), sample(p[-1])]


def block(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Block verification: coins from the last slot to the first."""
    k, vocab = len(tokens), p.shape[1]
    reach = [1.0]
    for i, x in enumerate(tokens):
        reach.append(min(reach[-1] * p[i, x] / q[i, x], 1.0))
    if rng.random() < reach[k]:
        return [*map(int, tokens), int(rng.choice(vocab, p=p[k]))]
    for i in range(k - 1, -1, -1):
        owed = np.maximum(reach[i] * p[i] - q[i], 0)
        total = owed.sum()
        if i == 0 or rng.random() < total / (total + 1 - reach[i]):
            return [*map(int, tokens[:i]), int(rng.choice(vocab, p=owed / total))]
    raise AssertionError("unreachable")


def residual_by_rejection(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The residual without normalising it: draw from p until a draw survives."""
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            while True:
                y = rng.choice(p.shape[1], p=p[i])
                if rng.random() * p[i, y] < p[i, y] - q[i, y]:
                    return [*map(int, tokens[:i]), int(y)]
    return [*map(int, tokens), int(rng.choice(p.shape[1], p=p[-1]))]


def sample_and_match(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The target samples; the draft is kept while it guessed the sample."""
    out: list[int] = []
    for i, row in enumerate(p):
        y = int(rng.choice(row.size, p=row))
        out.append(y)
        if i == len(tokens) or y != tokens[i]:
            break
    return out


def single_precision(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The loop in float32, as models give their probabilities."""
    q, p = q.astype(np.float32), p.astype(np.float32)
    for i, x in enumerate(tokens):
        if rng.random() >= p[i, x] / q[i, x]:
            residual = np.maximum(p[i] - q[i], np.float32(0))
            cdf = np.cumsum(residual / residual.sum())
            extra = min(int(np.searchsorted(cdf, rng.random(), side="right")), len(cdf) - 1)
            return [*map(int, tokens[:i]), extra]
    cdf = np.cumsum(p[-1])
    return [
        *map(int, tokens),
        min(int(np.searchsorted(cdf, rng.random(), side="right")), len(cdf) - 1),
    ]


def log_domain(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Coins compared as logarithms, draws by `multinomial`."""
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    for i, x in enumerate(tokens):
        if np.log(rng.random()) > log_p[i, x] - log_q[i, x]:
            residual = np.maximum(p[i] - q[i], 0)
            extra = rng.multinomial(1, residual / residual.sum()).argmax()
            return [*map(int, tokens[:i]), int(extra)]
    return [*map(int, tokens), int(rng.multinomial(1, p[-1]).argmax())]


RIGHT = (
    loop,
    vectorised,
    gumbel,
    race,
    block,
    residual_by_rejection,
    sample_and_match,
    single_precision,
    log_domain,
)
