"""A network of one decoder layer (or a few) that guesses ahead from the target's hidden states.

An *entry* stands for a token x_t. Its input is a feature f_t and the embedding of the next token
x_{t+1}; its output h_t predicts x_{t+2}. If the target has processed the token, f_t is fused from
the target's hidden states. Beyond that, f_t is the network's own output h_{t-1}, so the network can
continue alone, with less certainty at each step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from forerun.drafters.heads.design import Design

SMALLEST = 0.01  # size of a hidden value, where their mean is one, that is still made larger


class Layer(nn.Module):  # type: ignore[misc]
    """A decoder layer without two parts that differ between uses: the attention itself, and the
    inputs of its queries, keys and values."""

    def __init__(self, design: Design, num_inputs: int) -> None:
        super().__init__()
        width, inner = design.hidden_size, design.num_heads * design.head_size
        shared = design.num_kv_heads * design.head_size

        def product(name: str, inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=name in design.biases)

        self.design = design
        self.qkv = product("qkv", num_inputs, inner + 2 * shared)  # rows: q, then k, then v
        self.output = product("output", inner, width)
        self.norm_mlp = RMSNorm(1, width, design.norm_eps)
        self.gate_up = product("gate_up", width, 2 * design.mlp_size)  # rows: gate, then up
        self.down = product("down", design.mlp_size, width)
        if design.has_head_norms:
            self.norm_query = RMSNorm(1, design.head_size, design.norm_eps)
            self.norm_key = RMSNorm(1, design.head_size, design.norm_eps)

    def split(self, inputs: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rotated queries (..., H, d), and keys and values (..., KV, d), of inputs (..., M).

        cos, sin: (..., d / 2) of each entry's position.
        """
        design = self.design
        heads = self.qkv(inputs).unflatten(-1, (-1, design.head_size))
        counts = (design.num_heads, design.num_kv_heads, design.num_kv_heads)
        q, k, v = heads.split(counts, dim=-2)
        if design.has_head_norms:
            q, k = self.norm_query(q), self.norm_key(k)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def keys_values(self, inputs: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """The rotated keys and values (..., KV, d) of inputs (..., M) that need no queries."""
        design, first = self.design, self.design.num_heads * self.design.head_size
        bias = None if self.qkv.bias is None else self.qkv.bias[first:]
        heads = nn.functional.linear(inputs, self.qkv.weight[first:], bias)
        k, v = heads.unflatten(-1, (-1, design.head_size)).chunk(2, -2)
        return rotate(self.norm_key(k) if design.has_head_norms else k, cos, sin), v

    def initialise_layer(self) -> None:
        """Set random weights whose output is nearly zero, so that a token's state passes through at
        first."""
        spread(self.qkv, 1.0)
        spread(self.gate_up, 1.0)
        spread(self.output, 0.1)
        spread(self.down, 0.1)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and sines (..., d / 2) of positions (...)."""
        frequencies, factor = self.design.rotation()
        turns = positions[..., None].float() * torch.from_numpy(frequencies).to(positions.device)
        return turns.cos() * factor, turns.sin() * factor

    def add(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The layer's output (..., D), given its input and the attention output of its heads,
        attended (..., H * d)."""
        hidden = residual + self.output(attended)
        gate, up = self.gate_up(self.norm_mlp(hidden)).chunk(2, -1)
        finished: Tensor = hidden + self.down(nn.functional.silu(gate) * up)
        return finished


class Deeper(Layer):
    """A layer after the first; some published heads have several layers."""

    def __init__(self, design: Design) -> None:
        super().__init__(design, design.hidden_size)
        self.norm = RMSNorm(1, design.hidden_size, design.norm_eps)

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rotated queries, keys and values of this layer's input (..., D)."""
        return self.split(self.norm(hidden), cos, sin)


class Network(Layer):
    """The first layer, and everything before the first and after the last layer."""

    def __init__(self, design: Design) -> None:
        width, eps = design.hidden_size, design.norm_eps
        super().__init__(design, width if design.is_joined else 2 * width)
        if design.norm_parts:
            size = design.num_features // design.norm_parts
            self.norm_layers = RMSNorm(design.norm_parts, size, eps)
        if design.is_joined:
            self.join = nn.Linear(2 * width, width, bias=False)
            self.norm = RMSNorm(1, width, eps)
        else:
            self.fuse = nn.Linear(design.num_features, width, bias="fuse" in design.biases)
        self.norm_feature = RMSNorm(1, width, eps)
        self.norm_embedding = RMSNorm(1, width, eps)
        self.deeper = nn.ModuleList(Deeper(design) for _ in range(design.num_layers - 1))
        self.norm_head = RMSNorm(1, width, eps)
        self.head = nn.Linear(width, design.num_tokens, bias=False)

    def features(self, hidden: Tensor) -> Tensor:
        """Fuse the target's hidden states (..., F) into features f (..., D)."""
        normed: Tensor = self.norm_layers(hidden) if self.design.norm_parts else hidden
        return normed if self.design.is_joined else self.fuse(normed)

    def enter(self, features: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Combine features and embeddings (..., D) into the first layer's residual stream,
        (..., D), and the input of its queries, keys and values, (..., M)."""
        normed = self.norm_feature(features)
        both = torch.cat((normed, self.norm_embedding(embeddings)), -1)
        if self.design.is_joined:
            residual = self.join(both)
            return residual, self.norm(residual)
        return normed if self.design.norms_residual else features, both

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the draft vocabulary, (..., Vd)."""
        output: Tensor = self.head(self.norm_head(hidden))
        return output

    def next_features(self, hidden: Tensor) -> Tensor:
        """The features (..., D) of the next entries, given the last layer's outputs for these."""
        normed: Tensor = self.norm_head(hidden) if self.design.norms_output else hidden
        return normed

    def initialise(self, head: Tensor) -> Network:
        """Initialise the head with the target's rows (Vd, D); all other weights are random."""
        spread(self.fuse, 1.0)
        self.initialise_layer()
        self.head.weight.data.copy_(head)
        return self


def spread(product: nn.Linear, size: float) -> None:
    """Set random weights that turn inputs of size one into outputs of about `size`."""
    nn.init.normal_(product.weight, std=size / math.sqrt(product.in_features))


def balance(norm: RMSNorm, hidden: Tensor) -> None:
    """Set the weights of a norm so that all values of the target's states (N, F) become about one.

    In some targets a few values hold nearly all of a state's length, and a plain norm would leave
    almost nothing of the others.
    """
    weight: Tensor = norm.weight.data.fill_(1.0)
    with torch.no_grad():
        sizes = norm(hidden.float()).square().mean(0).sqrt()
    weight.copy_(1 / sizes.clamp_min(SMALLEST))


class RMSNorm(nn.Module):  # type: ignore[misc]
    """A weighted norm that scales each of `parts` equal pieces of the last axis separately."""

    def __init__(self, parts: int, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(parts * width))
        self.parts, self.eps = parts, eps

    def forward(self, values: Tensor) -> Tensor:
        wide, rms_norm = values.float(), nn.functional.rms_norm  # one kernel on a GPU
        if self.parts == 1:
            scaled = rms_norm(wide, self.weight.shape, self.weight.float(), self.eps)
            return scaled.to(values.dtype)
        pieces = wide.unflatten(-1, (self.parts, -1))
        scaled = rms_norm(pieces, pieces.shape[-1:], None, self.eps)
        return (scaled.flatten(-2) * self.weight).to(values.dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d / 2) of heads (..., H, d) by the angles (..., d / 2) of their
    entry."""
    first, second = heads.chunk(2, -1)
    cos, sin = cos[..., None, :].to(heads.dtype), sin[..., None, :].to(heads.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def embedding_of(model: Any) -> Tensor:
    """The token embedding (V, D) of a transformers model; the network uses its target's."""
    table: Tensor = model.get_input_embeddings().weight.detach()
    return table
