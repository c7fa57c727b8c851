"""The interface of training one kind of network, and the training objectives.

The objectives compare the network's distributions with the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from forerun.drafters.heads.design import Design
from forerun.train.teacher import Batch, Teacher


class Course(Protocol):
    """Trains one kind of network."""

    @property
    def network(self) -> Any: ...

    @property
    def teacher(self) -> Teacher: ...

    def ahead(self, hidden: Tensor, tokens: Tensor, num_steps: int, first: int) -> Iterator[Tensor]:
        """Draft from every place at once. Yields the outputs (B, Q, D) of each guess, in order.

        hidden: (B, L, F), the target's states. tokens: (B, L).
        Column i drafts after token t + 1, where t = first + i is the last token that the target has
        processed; its guess j is for token t + 2 + j.
        """
        ...

    def loss(self, batch: Batch, step: int) -> Tensor:
        """The loss of the training step with this number."""
        ...


class Recipe(Protocol):
    """A kind of drafter to train, with its options."""

    @property
    def kind(self) -> str: ...

    def design(self, config: Any, num_tokens: int, mlp_size: int | None, mask_token: int) -> Design:
        """The design for a target with this transformers configuration. mask_token: a token that
        never occurs in texts."""
        ...

    def network(self, design: Any) -> Any:
        """The network; its weights must still be initialised or loaded."""
        ...

    def course(self, network: Any, teacher: Teacher, objective: Objective) -> Course: ...

    def settings(self) -> dict[str, Any]:
        """The options that must not change when a run is resumed."""
        ...

    def in_words(self) -> str:
        """The options in words, for the drafter's model card."""
        ...


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function that gives losses (A,) from draft logits (A, Vd), target probabilities (A, Vd) that
may sum to less than 1, and the draft index (A,) of the target's likeliest token, -1 where it has
none."""


def forward_kl(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """The cross-entropy with the target's distribution; it differs from the KL divergence by a
    constant."""
    return -(probs * torch.log_softmax(logits, -1, dtype=torch.float32)).sum(-1)


def total_variation(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """The total variation distance: 1 minus the overlap of the two distributions."""
    return 1 - torch.minimum(logits.float().softmax(-1), probs.float()).sum(-1)


def top_one(logits: Tensor, probs: Tensor, best: Tensor) -> Tensor:
    """The cross-entropy with the target's likeliest token."""
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
