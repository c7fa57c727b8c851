"""One pass of a model over the tokens of several rows, as a fixed sequence of kernels.

Everything that a pass reads or writes has a fixed address, so that it can be captured once as a
CUDA graph and replayed with other tokens.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from forerun.gpu.attention import AttentionScratch, Cache, queue_attention
from forerun.gpu.experts import ExpertScratch, queue_experts
from forerun.gpu.formats import operand
from forerun.gpu.kernels.layers import (
    PARTIAL,
    add_product,
    gate_up,
    head,
    queries_keys_values,
)
from forerun.gpu.kernels.products import write_out
from forerun.gpu.kernels.whole_rows import add_rows, embed, final_norm, turn
from forerun.gpu.shapes import NARROW, Inputs, PassShape
from forerun.gpu.tiles import MOST_PACKED, Tile, packed_tile, tile
from forerun.gpu.weights import Layer, Weights
from forerun.kernels.early_launch import dependent_launch
from forerun.models.families import Form
from forerun.models.packed import NUMBERS, Packed

LARGE, SMALL = 227 * 1024, 99 * 1024  # bytes of shared memory of a program, new and old devices
RESERVED = 2048  # bytes of it that tiles leave alone
ROOMY = 150 * 1024  # bytes of it that attention to large heads wants
ALIGNED = 16  # bytes, of rows that bulk copies read
WRITTEN_ROWS = 16  # of a packed matrix that a program writes out


class Scratch:
    """Memory between the kernels of a pass, for passes of up to this many tokens."""

    def __init__(self, weights: Weights, num_tokens: int) -> None:
        def empty(*size: int, dtype: Any = weights.head.dtype) -> Any:
            return torch.empty(size, dtype=dtype, device=weights.head.device)

        self.x = empty(num_tokens, weights.hidden)  # the residual stream before a layer
        self.middle = empty(num_tokens, weights.hidden)  # and between attention and the rest
        self.normed = empty(num_tokens, weights.hidden)  # times the weights of the next norm
        is_whole = bool(weights.form.family.after)  # kernels of whole rows come before all norms
        partials = 1 if is_whole else -(-weights.hidden // PARTIAL.value)
        self.squares = empty(num_tokens, partials, dtype=torch.float32)
        self.no_squares = self.squares[:, :0]  # of rows that are normed, or need not be
        form = weights.form
        width = form.num_heads * form.head_size
        raw = width + form.num_key_heads * form.head_size if turns_apart(form) else 0
        self.raw = empty(num_tokens, raw)  # queries and keys that are not turned yet
        self.added = empty(num_tokens, weights.hidden if form.family.after else 0)
        self.queries = empty(num_tokens, width)
        self.mixed = empty(num_tokens, width)
        self.inner = empty(num_tokens, weights.inner)
        self.matrix = empty(weights.largest_packed)  # one that is written out
        self.experts = ExpertScratch(weights.layers, num_tokens, self.x)


def turns_apart(form: Form) -> bool:
    """Whether queries and keys are rotated by a separate kernel, which sees whole heads."""
    return form.head_norms != "" or form.is_turned_in_part


@cache
def has_bulk_copies(device: Any) -> bool:
    """Whether a device has an engine that copies tiles to shared memory."""
    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device) >= (9, 0))


def operands(source: Any, matrix: Any, how: Tile, num_tokens: int) -> dict[str, Any]:
    """The arguments x and w for a product. They are tensor descriptors (BULK) if several large
    tiles of tokens use the same weights, because the copy engine then loads tiles faster than
    threads do."""
    plain = {"x": source, "BULK": False, **operand(matrix)}
    is_bulk = how.rows == NARROW < num_tokens and has_bulk_copies(matrix.device)
    if isinstance(matrix, Packed):
        return plain
    strides = (one.stride(0) * one.element_size() for one in (source, matrix))
    if not is_bulk or any(stride % ALIGNED for stride in strides):
        return plain
    x, w = (
        TensorDescriptor.from_tensor(one, [count, how.depth])
        for one, count in ((source, how.rows), (matrix, how.columns))
    )
    return plain | {"x": x, "w": w, "BULK": True}


def tile_of(
    kernel: str, num_tokens: int, matrix: Any, columns: int | None = None,
    num_outputs: int | None = None,
) -> Tile:  # fmt: skip
    """The tile of a product with a matrix; the other arguments are those of
    `forerun.gpu.tiles.tile`."""
    memory = shared_memory(matrix.device)
    if isinstance(matrix, Packed):
        about = NUMBERS[matrix.number]
        part, depth = matrix.part, matrix.shape[1]
        return packed_tile(kernel, num_tokens, about, part, depth, memory, columns, num_outputs)
    return tile(kernel, num_tokens, matrix.shape[1], memory, columns, num_outputs)


def written_out(matrix: Any, num_tokens: int, room: Any) -> Any:
    """A matrix in the form that a product with this many tokens reads.

    room: the memory that a packed matrix is written out to, if the pass has many tokens.
    """
    if not isinstance(matrix, Packed) or num_tokens <= MOST_PACKED:
        return matrix
    num_rows, depth = matrix.shape
    result = room[: num_rows * depth].view(num_rows, depth)
    read = operand(matrix)
    steps = depth // (NUMBERS[matrix.number].parts * matrix.part)
    write_out[-(-num_rows // WRITTEN_ROWS), steps](
        y=result, N=num_rows, K=depth, BN=WRITTEN_ROWS, num_warps=4, **read
    )
    return result


def launch_of(matrix: Any, stored: Any) -> dict[str, Any]:
    """Launch options of a product with a matrix. It loads its weights while the previous kernel
    ends, unless that kernel writes these weights."""
    options = dependent_launch(matrix.device)
    return options if matrix is stored else dict.fromkeys(options, False)


@cache
def shared_memory(device: Any) -> int:
    """The bytes of shared memory that the tiles of a program may take."""
    if device.type != "cuda":
        return LARGE
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", SMALL) - RESERVED


def add(
    kernel: str,
    num_tokens: int,
    source: Any,
    matrix: Any,
    residual: Any,
    norm: Any,
    result: Any,
    scratch: Scratch,
    bias: Any = None,
    gain: float = 1.0,
    unit: float = 0.0,
) -> None:
    """Queue result = residual + gain * (source @ matrix.T + bias) for the first tokens. If a norm
    follows, also fill `scratch.normed` and `scratch.squares` for it.

    residual, bias: None where there is none. norm: the weights of the norm that follows; None: none
    does.
    """
    stored, matrix = matrix, written_out(matrix, num_tokens, scratch.matrix)
    out, depth = matrix.shape
    how = tile_of(kernel, num_tokens, matrix, num_outputs=out)
    add_product[how.grid(num_tokens, out)](
        bias=bias, residual=residual, norm=norm, y=result, normed=scratch.normed,
        squares=scratch.squares, gain=gain, M=num_tokens, N=out, UNIT=unit, K=depth,
        P=scratch.squares.shape[1], BN=how.columns, BK=how.depth, MP=how.rows,
        MASKED=out % how.columns != 0, BIAS=bias is not None, ADD=residual is not None,
        NORM=norm is not None, num_warps=how.warps, num_stages=how.stages,
        **operands(source, matrix, how, num_tokens), **launch_of(matrix, stored),
    )  # fmt: skip


class Kernels:
    """Queues the kernels of one pass, a part of it at a time."""

    def __init__(
        self,
        weights: Weights,
        shape: PassShape,
        inputs: Inputs,
        cache: Cache,
        scratch: Scratch,
        attention: AttentionScratch | None = None,
        *,
        early: bool = True,
    ) -> None:
        """attention: scratch memory, for passes that attend to keys.

        early: whether the inputs were written before the kernel that precedes the first layer.
        """
        device = weights.head.device
        self._weights, self._shape, self._inputs = weights, shape, inputs
        self._cache, self._scratch, self._attention = cache, scratch, attention
        self._pdl = dependent_launch(device)
        self._early = early
        self._is_tight = weights.form.head_size > 128 and shared_memory(device) < ROOMY
        width = triton.next_power_of_2(weights.hidden)
        self._rows = {  # of kernels that see whole rows
            "UNIT": weights.form.family.unit, "K": weights.hidden, "KP": width,
            "P": scratch.squares.shape[1], "num_warps": 8 if width > 2048 else 4, **self._pdl,
        }  # fmt: skip

    def embed(self, norm: Any) -> None:
        """Queue the embedding: the residual stream before the first layer, whose norm has these
        weights, if any."""
        w, scratch = self._weights, self._scratch
        embed[(self._shape.num_tokens,)](
            w.embedding, self._inputs.ids, norm, scratch.x, scratch.normed, scratch.squares,
            w.form.embedding_scale, NORM=norm is not None, **self._rows,
        )  # fmt: skip

    def layer(
        self, number: int, source: Any, squares: Any, next_norm: Any, residual: Any = None
    ) -> None:
        """Queue one layer, whose result goes to `scratch.x`.

        source, squares: the input of the queries, keys and values, and its sums of squares.
        next_norm: the weights of the norm that follows the layer; None: none does. residual: the
        residual stream before the layer; None: `scratch.x` too.
        """
        scratch, layer = self._scratch, self._weights.layers[number]
        before = scratch.x if residual is None else residual
        self.project(number, source, squares)
        queue_attention(
            self._weights, number, self._shape, self._inputs, self._cache, scratch.queries,
            scratch.mixed, self._attention, is_tight=self._is_tight, pdl=self._pdl,
        )  # fmt: skip
        self._add("out", scratch.mixed, layer.out, layer.out_bias, before, layer.attention_after,
                  layer.mlp_norm, scratch.middle)  # fmt: skip
        source, squares = scratch.normed, scratch.squares
        if layer.mlp_norm is None:
            source, squares = scratch.middle, scratch.no_squares
        if layer.experts is None:
            self._open(layer, source, squares)
            self._add("down", scratch.inner, layer.down, layer.down_bias, scratch.middle,
                      layer.mlp_after, next_norm, scratch.x)  # fmt: skip
        else:
            made = scratch.experts
            queue_experts(self._weights, layer.experts, self._shape.num_tokens, self._inputs.rows,
                          source, squares, made, shared_memory(source.device))  # fmt: skip
            self._add_rows(made.outer, scratch.middle, layer.mlp_after, next_norm, scratch.x,
                           made.weights, layer.experts.form.chosen)  # fmt: skip

    def _open(self, layer: Layer, source: Any, squares: Any) -> None:
        """Queue the gate and up projections of the MLP; their activated product goes to
        `scratch.inner`."""
        w, scratch, m = self._weights, self._scratch, self._shape.num_tokens
        inner, (alpha, limit) = layer.down.shape[1], w.form.clamp
        matrix = written_out(layer.gate_up, m, scratch.matrix)
        how = tile_of("gate_up", m, matrix, num_outputs=inner)
        gate_up[how.grid(m, inner)](
            squares=squares, bias=layer.gate_up_bias, y=scratch.inner, M=m, N=inner,
            eps=w.eps, alpha=alpha, limit=limit, K=w.hidden, P=squares.shape[1],
            BN=how.columns, BK=how.depth, MP=how.rows, MASKED=inner % how.columns != 0,
            BIAS=layer.gate_up_bias is not None, KIND=w.form.activation, num_warps=how.warps,
            num_stages=how.stages,
            **operands(source, matrix, how, m),
            **launch_of(matrix, layer.gate_up),
        )  # fmt: skip

    def _add(
        self, kernel: str, source: Any, matrix: Any, bias: Any, residual: Any, after: Any,
        norm: Any, result: Any,
    ) -> None:  # fmt: skip
        """Queue the addition of a product to the residual stream; if the product is normed first, a
        second kernel adds it."""
        form, scratch, m = self._weights.form, self._scratch, self._shape.num_tokens
        gain, unit = form.residual_scale, form.family.unit
        if after is None:
            add(kernel, m, source, matrix, residual, norm, result, scratch, bias, gain, unit)
            return
        add(kernel, m, source, matrix, None, None, scratch.added, scratch, bias)
        self._add_rows(scratch.added, residual, after, norm, result)

    def _add_rows(
        self, added: Any, residual: Any, after: Any, norm: Any, result: Any, parts: Any = None,
        num_parts: int = 0,
    ) -> None:  # fmt: skip
        """Queue the addition of whole rows to the residual stream, which are normed first if
        `after`. parts: if each token has several rows, their weights."""
        form, scratch = self._weights.form, self._scratch
        add_rows[(self._shape.num_tokens,)](
            added, parts, after, residual, norm, result, scratch.normed, scratch.squares,
            form.residual_scale, form.eps, PARTS=num_parts, AFTER=after is not None,
            NORM=norm is not None, **self._rows,
        )  # fmt: skip

    def project(self, number: int, source: Any, squares: Any) -> None:
        """Queue the queries, keys and values of a layer; keys and values go to the cache."""
        w, inputs, cache, scratch = self._weights, self._inputs, self._cache, self._scratch
        form, layer, m = w.form, w.layers[number], self._shape.num_tokens
        keys, values = cache.keys[number], cache.values[number]
        table, is_raw = form.layers[number].table, turns_apart(form)
        cos, sin = cache.cos[table or 0], cache.sin[table or 0]
        half, first = form.head_size // 2, 0
        whole = max(16, int(triton.next_power_of_2(half)))  # columns of a tile at most
        pages = {"pages": cache.pages, "width": cache.pages.shape[1]}
        sizes = {"H": form.num_heads, "KV": form.num_key_heads, "HD": form.head_size,
                 "PAGE": keys.shape[2], "TURN": table is not None} | self._pdl | pages  # fmt: skip
        for stored in layer.qkv if isinstance(layer.qkv, tuple) else (layer.qkv,):
            matrix = written_out(stored, m, scratch.matrix)
            heads = matrix.shape[0] // form.head_size
            columns = min(whole, tile_of("qkv", m, matrix).columns)
            how = tile_of("qkv", m, matrix, columns, heads * half)
            queries_keys_values[-(-m // how.rows), heads * -(-half // how.columns)](
                squares=squares, bias=layer.qkv_bias, q=scratch.queries, keys=keys, values=values,
                raw=scratch.raw, cos=cos, sin=sin, rows=inputs.rows, slots=inputs.slots,
                positions=inputs.positions, M=m, eps=form.eps, K=matrix.shape[1],
                P=squares.shape[1], EARLY=self._early, BN=how.columns, BK=how.depth, MP=how.rows,
                BIAS=layer.qkv_bias is not None, RAW=is_raw, FIRST=first, num_warps=how.warps,
                num_stages=how.stages, **(sizes | launch_of(matrix, stored)),
                **operands(source, matrix, how, m),
            )  # fmt: skip
            first += heads
        if is_raw:
            turn[(m, 2)](
                scratch.raw, layer.head_norms, scratch.queries, keys, cos, sin, inputs.rows,
                inputs.slots, inputs.positions, eps=form.eps, UNIT=form.family.unit,
                HP=triton.next_power_of_2(form.head_size),
                WP=triton.next_power_of_2(form.num_heads), RD=2 * cos.shape[1],
                HEAD_NORM=form.head_norms == "head", WIDE_NORM=form.head_norms == "width",
                num_warps=4, **sizes,
            )  # fmt: skip

    def head(self, logits: Any, columns: Any = None) -> None:
        """Queue the logits (num_logits, V) of the picked tokens.

        columns: (rows of the head,), the column of the logits that each row fills; None: the column
        with its number.
        """
        w, scratch, count = self._weights, self._scratch, self._shape.num_logits
        num_outputs = w.head.shape[0]
        how = tile_of("head", count, w.head, num_outputs=num_outputs)
        picked = self._inputs.picked
        head[how.grid(count, num_outputs)](
            x=scratch.normed, squares=scratch.squares, y=logits, picked=picked,
            columns=picked if columns is None else columns, M=count, N=num_outputs,
            width=logits.shape[1], eps=w.eps, gain=w.form.logits_scale, cap=w.form.logits_cap,
            CAPPED=w.form.logits_cap > 0, K=w.hidden, P=scratch.squares.shape[1], BN=how.columns,
            BK=how.depth, MP=how.rows, MASKED=num_outputs % how.columns != 0,
            MAPPED=columns is not None, num_warps=how.warps, num_stages=how.stages,
            **operand(w.head), **self._pdl,
        )  # fmt: skip


def launch(
    weights: Weights,
    shape: PassShape,
    inputs: Inputs,
    cache: Cache,
    scratch: Scratch,
    attention: AttentionScratch | None,
    logits: Any,
    *,
    watched: Any = None,
    layers: tuple[int, ...] = (),
) -> None:
    """Queue the kernels of one pass, which fills in logits (num_logits, V), float32.

    watched: (M, len(layers) * K), receives the hidden states after `layers[i]` layers; after the
    last layer, those that the head reads.
    """
    w, m, hidden, x = weights, shape.num_tokens, weights.hidden, scratch.x
    kernels = Kernels(weights, shape, inputs, cache, scratch, attention)
    total = shape.num_layers or len(w.layers)
    norms = [layer.attention_norm for layer in w.layers[:total]] + [w.norm]
    kernels.embed(norms[0])
    for number in range(total):
        for place in (at for at, layer in enumerate(layers) if layer == number):
            watched[:m, place * hidden : (place + 1) * hidden] = x[:m]
        is_normed = norms[number] is not None
        source = scratch.normed if is_normed else x
        squares = scratch.squares if is_normed else scratch.no_squares
        kernels.layer(number, source, squares, norms[number + 1])
    for place in (at for at, layer in enumerate(layers) if layer == total):
        states = watched[:, place * hidden :]
        final_norm[(m,)](x, w.norm, states, watched.shape[1], w.eps,
                         UNIT=w.form.family.unit, K=hidden,
                         KP=triton.next_power_of_2(hidden), num_warps=4)  # fmt: skip
    if shape.num_logits:
        kernels.head(logits)
