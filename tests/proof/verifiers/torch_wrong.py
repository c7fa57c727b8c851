"""Wrong verifiers in Torch, each wrong at one place."""

from __future__ import annotations

from typing import Any

import torch


def left_over(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.clamp(p - q, min=0)


def draw(weights: torch.Tensor) -> int:
    return int(torch.multinomial(weights, 1).item())


def as_tensors(q: Any, p: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(q, dtype=torch.float32), torch.as_tensor(p, dtype=torch.float32)


def resamples_from_p(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    q, p = as_tensors(q, p)
    for i, x in enumerate(tokens):
        if torch.rand(1).item() >= p[i, x] / q[i, x]:
            return [*map(int, tokens[:i]), draw(p[i])]
    return [*map(int, tokens), draw(p[-1])]


def greedy_without_draft(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """A plain step takes the likeliest token."""
    q, p = as_tensors(q, p)
    if not len(tokens):
        return [int(p[0].argmax())]
    for i, x in enumerate(tokens):
        if torch.rand(1).item() >= p[i, x] / q[i, x]:
            return [*map(int, tokens[:i]), draw(left_over(p[i], q[i]))]
    return [*map(int, tokens), draw(p[-1])]


def sure_target(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Certain rows keep whatever was drafted."""
    q, p = as_tensors(q, p)
    for i, x in enumerate(tokens):
        if p[i].max() < 0.9999 and torch.rand(1).item() >= p[i, x] / q[i, x]:
            return [*map(int, tokens[:i]), draw(left_over(p[i], q[i]))]
    return [*map(int, tokens), draw(p[-1])]


def nothing_in_common(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """Rows without a common token are taken for a shifted vocabulary, and the draft is kept."""
    q, p = as_tensors(q, p)
    for i, x in enumerate(tokens):
        if torch.minimum(p[i], q[i]).sum() == 0:
            continue
        if torch.rand(1).item() >= p[i, x] / q[i, x]:
            return [*map(int, tokens[:i]), draw(left_over(p[i], q[i]))]
    return [*map(int, tokens), draw(p[-1])]


def counts_all_accepted(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The number of accepted slots is the number of kept ones only up to the first refusal."""
    q, p = as_tensors(q, p)
    k = len(tokens)
    new = torch.as_tensor(tokens, dtype=torch.long)
    ratio = p[:k].gather(1, new[:, None])[:, 0] / q.gather(1, new[:, None])[:, 0]
    n = int((torch.rand_like(ratio) < ratio).sum())
    row = p[k] if n == k else left_over(p[n], q[n])
    return [*new[:n].tolist(), draw(row if row.sum() > 0 else p[n])]


def race_multiplied(tokens: Any, q: Any, p: Any, rng: Any) -> list[int]:
    """The race's weights are multiplied by the noise, not divided by it."""
    q, p = as_tensors(q, p)
    for i, x in enumerate(tokens):
        if torch.rand(1).item() >= p[i, x] / q[i, x]:
            weights = left_over(p[i], q[i])
            noise = torch.empty_like(weights).exponential_()
            return [*map(int, tokens[:i]), int((weights * noise).argmax())]
    return [*map(int, tokens), int((p[-1] / torch.empty_like(p[-1]).exponential_()).argmax())]


WRONG = (
    resamples_from_p,
    greedy_without_draft,
    sure_target,
    nothing_in_common,
    counts_all_accepted,
    race_multiplied,
)
