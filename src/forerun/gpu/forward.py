"""One pass of a model over the tokens of several rows, as a fixed sequence of kernels.

Everything that a pass reads or writes has a fixed address, so that it can be captured once as a
CUDA graph and replayed with other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
import triton

from forerun.gpu.dependent import dependent_launch
from forerun.gpu.kernels.layers import (
    PARTIAL,
    add_product,
    attend,
    embed,
    final_norm,
    gate_up,
    head,
    queries_keys_values,
)
from forerun.gpu.tiles import TILES, tile
from forerun.gpu.weights import Weights

MOST_TOKENS = 128  # in one pass
MOST_LOGITS = 64  # rows of logits in one pass
FEWEST = 16  # rows of a tensor-core product
PER_SEGMENT = 16  # tokens of a segment of attention at most
CHUNK = 128  # keys of a chunk of attention; another number gives other bits
BLOCK_KEYS = 64  # keys of one product within a chunk; another number gives other bits
LARGE, SMALL = 227 * 1024, 99 * 1024  # bytes of shared memory of a program, new and old devices
RESERVED = 2048  # bytes of it that tiles leave alone
ATTENTION_WARPS, ATTENTION_STAGES = 4, 3


class PassShape(NamedTuple):
    """What is fixed when a pass is captured."""

    num_tokens: int
    num_logits: int
    num_segments: int
    per_segment: int  # tokens
    num_chunks: int  # of the longest text, at most
    branch_width: int = 0  # 0: no trees
    num_layers: int = 0  # only the first ones, under the model's own head; 0: all


@dataclass
class Inputs:
    """What a pass is fed, as views of one tensor of 32-bit integers, so that one copy fills it."""

    shape: PassShape
    packed: Any

    @classmethod
    def empty(cls, shape: PassShape, device: Any) -> Inputs:
        made = cls(shape, torch.zeros(cls.size(shape), dtype=torch.int32, device=device))
        made.rows.fill_(-1)
        return made

    @staticmethod
    def size(shape: PassShape) -> int:
        per_token = 5 + shape.branch_width
        return shape.num_tokens * per_token + shape.num_logits + 2 * shape.num_segments

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        shape, m = self.shape, self.shape.num_tokens
        sizes = [m, m, m, m, m, m * shape.branch_width, shape.num_logits, 2 * shape.num_segments]
        return tuple(self.packed.split(sizes))

    @property
    def ids(self) -> Any:  # (M,)
        return self._parts[0]

    @property
    def rows(self) -> Any:  # (M,): -1 for padding
        return self._parts[1]

    @property
    def slots(self) -> Any:  # (M,): where in the row's cache
        return self._parts[2]

    @property
    def positions(self) -> Any:  # (M,): in the text
        return self._parts[3]

    @property
    def before(self) -> Any:  # (M,): slots before the tree
        return self._parts[4]

    @property
    def branches(self) -> Any:  # (M * branch_width,): slots of a node's ancestors and its own
        return self._parts[5]

    @property
    def picked(self) -> Any:  # (num_logits,): tokens whose logits are computed
        return self._parts[6]

    @property
    def segments(self) -> Any:  # (2 * num_segments,): first token and count; a count of 0 is none
        return self._parts[7]


class Cache(NamedTuple):
    """Keys and values of all layers and rows, and the rotary table."""

    keys: Any  # (layers, rows, key heads, capacity, head size)
    values: Any
    cos: Any  # (positions, head size / 2), float32
    sin: Any


class Scratch:
    """What is handed from kernel to kernel, for passes of up to so many tokens."""

    def __init__(self, weights: Weights, num_tokens: int) -> None:
        def empty(*size: int, dtype: Any = weights.head.dtype) -> Any:
            return torch.empty(size, dtype=dtype, device=weights.head.device)

        self.x = empty(num_tokens, weights.hidden)  # the residual stream before a layer
        self.middle = empty(num_tokens, weights.hidden)  # and between attention and the rest
        self.normed = empty(num_tokens, weights.hidden)  # times the weights of the next norm
        partials = -(-weights.hidden // PARTIAL.value)
        self.squares = empty(num_tokens, partials, dtype=torch.float32)
        width = weights.num_heads * weights.head_size
        self.queries = empty(num_tokens, width)
        self.mixed = empty(num_tokens, width)
        self.inner = empty(num_tokens, weights.inner)


class AttentionScratch:
    """What the chunks of attention hand to the one that adds them up."""

    def __init__(self, weights: Weights, shape: PassShape) -> None:
        device = weights.head.device
        rows = per_tile(weights, shape.per_segment)
        num = weights.num_key_heads * shape.num_segments
        wide = triton.next_power_of_2(weights.head_size)
        chunks = num * shape.num_chunks if shape.num_chunks > 1 else 1
        self.parts = torch.empty(chunks * rows * wide, dtype=torch.float32, device=device)
        self.stats = torch.empty(chunks * rows * 2, dtype=torch.float32, device=device)
        self.done = torch.zeros(num, dtype=torch.int32, device=device)


def per_tile(weights: Weights, per_segment: int) -> int:
    """Rows of attention's tile: the queries of a segment that share a key head, padded."""
    return padded_segment(weights, per_segment) * int(triton.next_power_of_2(weights.group))


def padded_segment(weights: Weights, per_segment: int) -> int:
    fewest = max(1, FEWEST // triton.next_power_of_2(weights.group))
    return int(max(fewest, triton.next_power_of_2(per_segment)))


@cache
def shared_memory(device: Any) -> int:
    """Bytes of it that the tiles of a program may take."""
    if device.type != "cuda":
        return LARGE
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", SMALL) - RESERVED


def num_chunks(length: int) -> int:
    """Chunks of attention for texts of this length, in buckets."""
    return int(triton.next_power_of_2(max(1, -(-length // CHUNK))))


def launch(
    weights: Weights,
    shape: PassShape,
    inputs: Inputs,
    cache: Cache,
    scratch: Scratch,
    attention: AttentionScratch,
    logits: Any,
    *,
    watched: Any = None,
    layers: tuple[int, ...] = (),
) -> None:
    """Queue the kernels of one pass, which fills in logits (num_logits, V), float32.

    watched: (M, len(layers) * K), filled with the hidden states after `layers[i]` layers; after the
        last one, with what the head reads.
    """
    w, m = weights, shape.num_tokens
    rows = max(FEWEST, int(triton.next_power_of_2(m)))
    hidden, vocab = w.hidden, w.head.shape[0]
    pdl = dependent_launch(w.head.device)
    capacity = cache.keys.shape[3]
    heads = w.num_heads + 2 * w.num_key_heads
    half = w.head_size // 2
    partials, memory = scratch.squares.shape[1], shared_memory(w.head.device)
    x, middle, normed, squares = scratch.x, scratch.middle, scratch.normed, scratch.squares
    total = shape.num_layers or len(w.layers)
    norms = [layer.attention_norm for layer in w.layers[:total]] + [w.norm]

    def add(kernel: str, source: Any, matrix: Any, residual: Any, norm: Any, result: Any) -> None:
        out, depth = matrix.shape
        how = tile(kernel, rows, depth, memory)
        add_product[(-(-out // how.columns),)](
            source, matrix, residual, norm, result, normed, squares, m, out, K=depth, P=partials,
            BN=how.columns, BK=how.depth, MP=rows, MASKED=out % how.columns != 0,
            num_warps=how.warps, num_stages=how.stages, **pdl,
        )  # fmt: skip

    embed[(m,)](
        w.embedding, inputs.ids, norms[0], x, normed, squares, K=hidden,
        KP=triton.next_power_of_2(hidden), P=partials, num_warps=4, **pdl,
    )  # fmt: skip
    for number, layer in enumerate(w.layers[:total]):
        for place in (at for at, layer in enumerate(layers) if layer == number):
            watched[:m, place * hidden : (place + 1) * hidden] = x[:m]
        keys, values = cache.keys[number], cache.values[number]
        columns = max(16, int(triton.next_power_of_2(half)))  # a whole head
        if layer.head_norms is None:
            columns = min(columns, TILES["qkv"][rows].columns)
        how = tile("qkv", rows, hidden, memory, columns)
        queries_keys_values[(heads * -(-half // columns),)](
            normed, squares, layer.qkv, layer.bias, layer.head_norms, scratch.queries, keys,
            values, cache.cos, cache.sin, inputs.rows, inputs.slots, inputs.positions, m, capacity,
            w.eps, w.head_eps, K=hidden, P=partials, H=w.num_heads, KV=w.num_key_heads,
            HD=w.head_size, BN=columns, BK=how.depth, MP=rows, BIAS=layer.bias is not None,
            HEAD_NORM=layer.head_norms is not None, num_warps=how.warps, num_stages=how.stages,
            **pdl,
        )  # fmt: skip
        attend[(w.num_key_heads, shape.num_chunks, shape.num_segments)](
            scratch.queries, keys, values, scratch.mixed, attention.parts, attention.stats,
            attention.done, inputs.rows, inputs.positions, inputs.before, inputs.branches,
            inputs.segments, capacity, w.scaling, shape.branch_width, H=w.num_heads,
            KV=w.num_key_heads, G=w.group, GP=triton.next_power_of_2(w.group), HD=w.head_size,
            HP=triton.next_power_of_2(w.head_size), MQ=padded_segment(w, shape.per_segment),
            CHUNK=CHUNK, BLOCK=BLOCK_KEYS, TREE=shape.branch_width > 0, num_warps=ATTENTION_WARPS,
            num_stages=ATTENTION_STAGES, **pdl,
        )  # fmt: skip
        add("out", scratch.mixed, layer.out, x, layer.mlp_norm, middle)
        how = tile("gate_up", rows, hidden, memory)
        gate_up[(-(-w.inner // how.columns),)](
            normed, squares, layer.gate_up, scratch.inner, m, w.inner, w.eps, K=hidden, P=partials,
            BN=how.columns, BK=how.depth, MP=rows, MASKED=w.inner % how.columns != 0,
            num_warps=how.warps, num_stages=how.stages, **pdl,
        )  # fmt: skip
        add("down", scratch.inner, layer.down, middle, norms[number + 1], x)
    for place in (at for at, layer in enumerate(layers) if layer == total):
        states = watched[:, place * hidden :]
        final_norm[(m,)](x, w.norm, states, watched.shape[1], w.eps, K=hidden,
                         KP=triton.next_power_of_2(hidden), num_warps=4)  # fmt: skip
    count = shape.num_logits
    if count == 0:
        return
    few = max(FEWEST, int(triton.next_power_of_2(count)))
    how = tile("head", few, hidden, memory)
    head[(-(-vocab // how.columns),)](
        normed, squares, w.head, logits, inputs.picked, count, vocab, w.eps, K=hidden, P=partials,
        BN=how.columns, BK=how.depth, MP=few, MASKED=vocab % how.columns != 0, num_warps=how.warps,
        num_stages=how.stages, **pdl,
    )  # fmt: skip
