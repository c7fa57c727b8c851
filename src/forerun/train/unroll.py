"""The drafter run ahead of every token of a text at once, as it will run when it drafts.

Step j starts at each place t where step j - 1 left off: its feature is the drafter's own output
there, its token the text's.  It sees the verified keys up to t, which are those of step 0, and
the keys of steps 1 .. j at its own place: exactly what a chain of guesses sees.  The objectives
compare its laws with the target's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from forerun.drafters.heads.network import Network


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


def unroll(
    network: Network,
    hidden: Tensor,  # (B, L, F): the target's hidden states
    embeddings: Tensor,  # (B, L, D): the target's, of the tokens
    num_steps: int,
    first: int,  # places before this one are only looked back at
) -> Iterator[Tensor]:
    """Outputs (B, Q, D) of each step; column i of step j is place t = first + i after the tokens
    up to t + 1 + j, so it gives the law of token t + 2 + j."""
    length = hidden.shape[1] - 1  # the last token has none after it
    features = network.features(hidden[:, :length])
    places = torch.arange(length, device=hidden.device)
    heads = network.design.num_kv_heads
    is_hidden = places > places[first:, None]  # (Q, T)
    bias = torch.zeros(is_hidden.shape, dtype=features.dtype, device=hidden.device)
    bias.masked_fill_(is_hidden, float("-inf"))
    later: list[tuple[Tensor, Tensor]] = []  # keys and values (B, KV, 1, Q, d) of steps 1 ...
    past: tuple[Tensor, Tensor] | None = None  # those of step 0, (B, KV, T, d)
    for step in range(num_steps):
        at = places if step == 0 else places[first:]
        known = torch.nn.functional.pad(embeddings[:, 1 + step :], (0, 0, 0, step))
        known = known if step == 0 else known[:, first:]
        cos, sin = network.angles(at + step)
        query, key, value = network.project(features, known, cos, sin)
        if past is None:
            past = key.transpose(1, 2), value.transpose(1, 2)
            query, features = query[:, first:], features[:, first:]
        else:
            later.append((key.transpose(1, 2)[:, :, None], value.transpose(1, 2)[:, :, None]))
        grouped = query.unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)  # (B, KV, G, Q, d)
        attended = _attend(grouped, past, later, bias)
        outputs = network.finish(features, attended.permute(0, 3, 1, 2, 4).flatten(2))
        yield outputs
        features = network.next_features(outputs)


def _attend(
    query: Tensor,  # (B, KV, G, Q, d)
    past: tuple[Tensor, Tensor],  # (B, KV, T, d)
    later: list[tuple[Tensor, Tensor]],  # (B, KV, 1, Q, d)
    bias: Tensor,  # (Q, T)
) -> Tensor:
    """Attention (B, KV, G, Q, d) over the keys of step 0 up to each place and the keys of the later
    steps at the place itself."""
    query = query / math.sqrt(query.shape[-1])
    scores = (query.flatten(2, 3) @ past[0].transpose(2, 3)).unflatten(2, query.shape[2:4]) + bias
    self_scores = [(query * key).sum(-1, keepdim=True).to(scores.dtype) for key, _ in later]
    with torch.autocast(query.device.type, enabled=False):  # its softmax would copy to float32
        weights = torch.cat((scores, *self_scores), -1).softmax(-1)
    sizes = [bias.shape[1], *(1 for _ in later)]
    past_weights, *self_weights = weights.split(sizes, -1)  # slices would each pad a gradient
    attended = past_weights.flatten(2, 3) @ past[1]
    attended = attended.unflatten(2, query.shape[2:4])
    for weight, (_, value) in zip(self_weights, later, strict=True):
        attended = attended + weight * value
    return attended
