"""Rounds to verify: random ones, and dyadic ones whose arithmetic is exact in every library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import forerun as fr
from libraries import Library


@dataclass(frozen=True)
class Instance:
    """A drafted round in NumPy: tokens (B, K) drawn from draft (B, K, V), target (B, K + 1, V)."""

    tokens: np.ndarray
    draft: np.ndarray
    target: np.ndarray

    def sampled(self, lib: Library, **options: Any) -> fr.Draft:
        return fr.Draft.sampled(lib.array(self.tokens), lib.array(self.draft), **options)


def sample(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """One token of each row of rows (..., V)."""
    running = np.cumsum(rows.astype(np.float64), axis=-1)
    aims = rng.random(rows.shape[:-1])[..., None] * running[..., -1:]
    return np.minimum(np.sum(running <= aims, axis=-1), rows.shape[-1] - 1)


def random_instance(
    seed: int, num_rows: int, draft_length: int, vocab_size: int, dtype: Any = np.float64
) -> Instance:
    """A drafter that agrees with its target to a degree that differs from row to row."""
    rng = np.random.default_rng([seed, num_rows, draft_length, vocab_size])
    target = rng.dirichlet(np.full(vocab_size, 0.5), (num_rows, draft_length + 1))
    other = rng.dirichlet(np.full(vocab_size, 0.5), (num_rows, draft_length))
    share = rng.random((num_rows, 1, 1))
    draft = share * target[:, :-1] + (1 - share) * other
    draft, target = (made.astype(dtype) for made in (draft, target))
    return Instance(sample(rng, draft), draft, target)


def dyadic_instance(
    seed: int, num_rows: int, draft_length: int, vocab_size: int, dtype: Any = np.float32
) -> Instance:
    """Probabilities in sixty-fourths, zeros among them: sums and differences have no rounding."""
    rng = np.random.default_rng([seed, num_rows, draft_length, vocab_size, 64])

    def rows(count: int) -> np.ndarray:
        laws = rng.dirichlet(np.full(vocab_size, 0.5), (num_rows, count))
        return (rng.multinomial(64, laws) / 64).astype(dtype)

    target, draft = rows(draft_length + 1), rows(draft_length)
    return Instance(sample(rng, draft), draft, target)
