"""Runs a drafter ahead of every token of a text at once, exactly as it runs when it drafts.

At each place t, step j continues from step j - 1: its feature is the drafter's own output there,
and its token is the text's. It attends to the verified keys up to t, which are those of step 0, and
to the keys of steps 1 .. j at the same place, as a chain of guesses does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from forerun.drafters.heads.design import Design
from forerun.drafters.heads.network import Network
from forerun.train.course import Objective
from forerun.train.teacher import Batch, Teacher, autocast


class StepWeights(NamedTuple):
    """The weights of unrolled steps: step j counts decay^j if the guesses before it were right,
    else `least` times as much."""

    decay: float
    least: float


STEP_WEIGHTS = {"fading": StepWeights(0.8, 1.0), "reached": StepWeights(0.9, 0.2)}


@dataclass
class Unrolled:
    """Trains a network that continues from its own outputs."""

    network: Network
    teacher: Teacher
    objective: Objective
    num_steps: int
    weights: StepWeights

    def ahead(self, hidden: Tensor, tokens: Tensor, num_steps: int, first: int) -> Iterator[Tensor]:
        return unroll(self.network, hidden, self.teacher.embedding[tokens], num_steps, first)

    def loss(self, batch: Batch, step: int) -> Tensor:
        """The mean objective of each unrolled step over the answer tokens, weighted and summed."""
        later = self.weights
        reached = torch.ones(batch.tokens.shape, device=batch.tokens.device)  # (B, L), by start
        hidden, final = self.teacher.watch(batch.tokens)
        probs, likeliest = self.teacher.laws(final[batch.rows, batch.places])
        best = self.teacher.to_draft[likeliest]
        said = self.teacher.to_draft[batch.next_tokens]  # -1 outside the draft vocabulary
        total: Any = 0.0
        with autocast(hidden.device):
            outputs = self.ahead(hidden, batch.tokens, self.num_steps, batch.first)
            for number, output in enumerate(outputs):
                starts = (batch.places - 1 - number - batch.first).clamp_min(0)
                logits = self.network.logits(output[batch.rows, starts])
                counts = batch.reach > number  # else the draft would have begun before the answer
                weights = later.least + (1 - later.least) * reached[batch.rows, starts]
                losses = self.objective(logits, probs, best) * counts * weights
                total = total + later.decay**number * losses.sum() / counts.sum().clamp_min(1)
                if later.least < 1:
                    drafts = batch.rows, torch.where(counts, starts, -1)  # no draft starts last
                    reached[drafts] *= logits.detach().argmax(-1) == said
        return total


@dataclass(frozen=True)
class HeadsRecipe:
    """How to train a network of one layer that continues from its own outputs."""

    num_unrolled: int
    later_steps: str  # how they are weighted
    kind = Design.kind

    def design(self, config: Any, num_tokens: int, mlp_size: int | None, mask_token: int) -> Design:
        return Design.after(config, num_tokens, mlp_size)

    def network(self, design: Design) -> Network:
        return Network(design)

    def course(self, network: Network, teacher: Teacher, objective: Objective) -> Unrolled:
        weights = STEP_WEIGHTS[self.later_steps]
        return Unrolled(network, teacher, objective, self.num_unrolled, weights)

    def settings(self) -> dict[str, Any]:
        return {"num_unrolled": self.num_unrolled, "later_steps": self.later_steps}

    def in_words(self) -> str:
        return f"unrolled {self.num_unrolled} steps, later steps {self.later_steps}"


def unroll(
    network: Network,
    hidden: Tensor,  # (B, L, F): the target's hidden states
    embeddings: Tensor,  # (B, L, D): the target's, of the tokens
    num_steps: int,
    first: int,  # places before this one are only looked back at
) -> Iterator[Tensor]:
    """Yield the outputs (B, Q, D) of each step. Column i of step j is at place t = first + i, after
    the tokens up to t + 1 + j, so it predicts token t + 2 + j."""
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
        residual, inputs = network.enter(features, known)
        query, key, value = network.split(inputs, cos, sin)
        if past is None:
            past = key.transpose(1, 2), value.transpose(1, 2)
            query, residual = query[:, first:], residual[:, first:]
        else:
            later.append((key.transpose(1, 2)[:, :, None], value.transpose(1, 2)[:, :, None]))
        grouped = query.unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)  # (B, KV, G, Q, d)
        attended = _attend(grouped, past, later, bias)
        outputs = network.add(residual, attended.permute(0, 3, 1, 2, 4).flatten(2))
        yield outputs
        features = network.next_features(outputs)


def _attend(
    query: Tensor,  # (B, KV, G, Q, d)
    past: tuple[Tensor, Tensor],  # (B, KV, T, d)
    later: list[tuple[Tensor, Tensor]],  # (B, KV, 1, Q, d)
    bias: Tensor,  # (Q, T)
) -> Tensor:
    """Attention (B, KV, G, Q, d) over the keys of step 0 up to each place, and over the keys of
    later steps at the same place."""
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
