"""Trains a network that guesses in blocks (drafters/block), from many places of a text at once.

The block after place t has token t + 1 as its anchor. It attends to the features of the tokens up
to t and to itself, exactly as when it drafts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from forerun.drafters.block.network import BlockNetwork
from forerun.drafters.heads.design import BlockDesign
from forerun.train.course import Objective
from forerun.train.teacher import Batch, Teacher, autocast

DECAY = math.exp(-1 / 4)  # of the weights of later guesses, as published for DFlash


@dataclass
class Blocks:
    """Trains a network that makes all guesses of a round in one pass."""

    network: BlockNetwork
    teacher: Teacher
    objective: Objective
    decay: float  # guess j counts decay^j
    stride: int  # places between two blocks of a batch; the first one changes with the step

    def ahead(self, hidden: Tensor, tokens: Tensor, num_steps: int, first: int) -> Iterator[Tensor]:
        places = torch.arange(first, tokens.shape[1] - 1, device=tokens.device)
        outputs = run_blocks(self.network, hidden, self.teacher.embedding, tokens, places)
        yield from outputs[:, :, :num_steps].unbind(2)

    def loss(self, batch: Batch, step: int) -> Tensor:
        """The mean objective of each guess over all blocks, weighted and summed.

        A guess counts only if its block begins in the same answer.
        """
        design, device = self.network.design, batch.tokens.device
        first = batch.first + step % self.stride
        places = torch.arange(first, batch.tokens.shape[1] - 1, self.stride, device=device)
        guess = torch.arange(design.num_guesses, device=device)
        behind = batch.places[:, None] - 1 - guess - first  # (A, N): of the block that guesses
        column = behind // self.stride  # what follows each place
        counts = (batch.reach[:, None] > guess) & (behind >= 0) & (behind % self.stride == 0)
        which, number = counts.nonzero(as_tuple=True)  # (M,): the place, and the guess
        hidden, final = self.teacher.watch(batch.tokens)
        probs, likeliest = self.teacher.laws(final[batch.rows, batch.places])
        best = self.teacher.to_draft[likeliest]
        weights = self.decay**guess / counts.sum(0).clamp_min(1)
        with autocast(device):
            outputs = run_blocks(self.network, hidden, self.teacher.embedding, batch.tokens, places)
            chosen = outputs[batch.rows[which], column[which, number], number]
            losses = self.objective(self.network.logits(chosen), probs[which], best[which])
            total: Tensor = (losses * weights[number]).sum()
        return total


@dataclass(frozen=True)
class BlockRecipe:
    """How to train a network of a few layers that makes all guesses in one pass."""

    block_size: int
    num_layers: int
    stride: int
    kind = BlockDesign.kind

    def design(
        self, config: Any, num_tokens: int, mlp_size: int | None, mask_token: int
    ) -> BlockDesign:
        return replace(
            BlockDesign.after(config, num_tokens, mlp_size),
            num_layers=self.num_layers,
            has_head_norms=True,
            block_size=self.block_size,
            mask_token=mask_token,
        )

    def network(self, design: BlockDesign) -> BlockNetwork:
        return BlockNetwork(design)

    def course(self, network: BlockNetwork, teacher: Teacher, objective: Objective) -> Blocks:
        return Blocks(network, teacher, objective, DECAY, self.stride)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    def in_words(self) -> str:
        return (
            f"blocks of {self.block_size} after every {self.stride} tokens, "
            f"{self.num_layers} layers"
        )


def run_blocks(
    network: BlockNetwork,
    hidden: Tensor,  # (B, L, F): the target's hidden states
    embedding: Tensor,  # (V, D), the target's
    tokens: Tensor,  # (B, L)
    places: Tensor,  # (Q,): the last token that the target has processed before each block
) -> Tensor:
    """Draft a block after each of `places`. Returns outputs (B, Q, N, D); guess j after place t is
    for token t + 2 + j."""
    design = network.design
    features = network.features(hidden[:, :-1])
    known = torch.arange(features.shape[1], device=hidden.device)
    slots = places[:, None] + 1 + torch.arange(design.block_size, device=hidden.device)  # (Q, S)
    told, own = network.angles(known), network.angles(slots)
    is_hidden = known > places[:, None]  # (Q, T)
    entries = network.entries(embedding, tokens[:, places + 1]).to(features.dtype)
    for layer in network.layers:
        past = layer.keys_values(features, *told)  # (B, T, KV, d)
        query, key, value = layer.project(entries, *own)  # (B, Q, S, heads, d)
        attended = _attend(query, (key, value), past, is_hidden)
        entries = layer.add(entries, attended.flatten(3))
    outputs: Tensor = network.outputs(entries)
    return outputs


def _attend(
    query: Tensor,  # (B, Q, S, H, d)
    own: tuple[Tensor, Tensor],  # (B, Q, S, KV, d)
    past: tuple[Tensor, Tensor],  # (B, T, KV, d)
    is_hidden: Tensor,  # (Q, T)
) -> Tensor:
    """Attention (B, Q, S, H, d) over the keys of the text up to each block's place and those of
    the block."""
    num_blocks, size, num_heads, width = query.shape[1:]
    heads = past[0].shape[2]
    group = num_heads // heads
    query = (query / math.sqrt(width)).unflatten(3, (heads, group)).permute(0, 3, 1, 4, 2, 5)
    keys, values = (part.permute(0, 3, 1, 2, 4) for part in own)  # (B, KV, Q, S, d)
    flat = query.flatten(2, 4)  # (B, KV, Q * G * S, d)
    bias = torch.zeros(is_hidden.shape, dtype=query.dtype, device=query.device)
    bias.masked_fill_(is_hidden, float("-inf"))
    scores = (flat @ past[0].permute(0, 2, 3, 1)).unflatten(2, (num_blocks, group * size))
    near = query.flatten(3, 4) @ keys.transpose(3, 4)  # (B, KV, Q, G * S, S)
    with torch.autocast(query.device.type, enabled=False):  # its softmax would copy to float32
        weights = torch.cat((scores + bias[:, None], near), -1).softmax(-1)
    far_weights, near_weights = weights.split([scores.shape[-1], size], -1)
    attended: Any = (far_weights.flatten(2, 3) @ past[1].transpose(1, 2)).unflatten(
        2, (num_blocks, group * size)
    )
    attended = (attended + near_weights @ values).unflatten(3, (group, size))
    # (B, KV, Q, G, S, d) back to (B, Q, S, H, d)
    mixed: Tensor = attended.permute(0, 2, 4, 1, 3, 5).flatten(3, 4)
    return mixed
