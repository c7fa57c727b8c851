"""Training losses per token, and how much the later steps of an unrolled draft count.

Under shared noise a guess is accepted about as often as the two laws overlap; under greedy decoding
it is accepted if the likeliest tokens agree.  Each loss is a differentiable substitute for one of
these; docs/train.md compares them.  A chain of guesses gets to step j only if all guesses before it
were right, and they are right more often where the text is easy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class StepWeights(NamedTuple):
    """Step j counts decay^j where the guesses before it were right, elsewhere `least` of that."""

    decay: float
    least: float


STEP_WEIGHTS = {"fading": StepWeights(0.8, 1.0), "reached": StepWeights(0.9, 0.2)}


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Draft logits (A, Vd), target probabilities (A, Vd) that may sum to less than 1, and the draft
index (A,) of the target's likeliest token, -1 where it has none; gives losses (A,)."""


def forward_kl(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """Cross-entropy with the target's law, which differs from the divergence by a constant."""
    return -(probs * torch.log_softmax(logits, -1, dtype=torch.float32)).sum(-1)


def total_variation(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """One minus the overlap of the two laws."""
    return 1 - torch.minimum(logits.float().softmax(-1), probs.float()).sum(-1)


def top_one(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """Cross-entropy with the target's likeliest token."""
    return torch.nn.functional.cross_entropy(
        logits.float(), best, ignore_index=-1, reduction="none"
    )


def mixed(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """The mean of `forward_kl` and `top_one`."""
    aim = probs / 2
    aim.scatter_add_(1, best.clamp_min(0)[:, None], (best >= 0)[:, None].to(aim.dtype) / 2)
    return forward_kl(logits, aim, best)


OBJECTIVES: dict[str, Objective] = {
    "kl": forward_kl,
    "tv": total_variation,
    "top1": top_one,
    "mix": mixed,
}
