"""Launches the kernels of a layer with experts, in place of its MLP.

The grid of the products is fixed when a pass is captured: enough tiles for any choice of experts.
Tokens choose their experts on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from forerun.gpu.formats import operand
from forerun.gpu.kernels.experts import close_experts, open_experts, route
from forerun.gpu.tiles import Tile, packed_tile
from forerun.gpu.weights import ExpertWeights, Layer, Weights
from forerun.kernels.early_launch import dependent_launch
from forerun.models.packed import NUMBERS, Packed

ROUTED = 16  # tokens and experts of a program that routes; other numbers may give other bits
FEW_TOKENS, FEW_PLACES, MANY_PLACES = 128, 16, 64  # places of a tile, in passes of few or many
COLUMNS, WARPS, STAGES = 32, 4, 4
STEPS = (128, 64, 32)  # inputs at a time: the first that divides them spares the masks


class ExpertScratch:
    """Scratch memory between the kernels of a layer with experts, for passes of up to this many
    tokens."""

    def __init__(self, layers: Sequence[Layer], num_tokens: int, like: Any) -> None:
        def empty(*size: int, dtype: Any = torch.int32) -> Any:
            return torch.empty(size, dtype=dtype, device=like.device)

        routed = [layer.experts for layer in layers if layer.experts is not None]
        count = max((one.form.total for one in routed), default=0)
        pairs = num_tokens * max((one.form.chosen for one in routed), default=0)
        inner = max((one.inner for one in routed), default=0)
        tiles = pairs // FEW_PLACES + count
        self.scores = empty(num_tokens, count, dtype=torch.float32)
        self.chosen, self.order = empty(pairs), empty(tiles * MANY_PLACES)
        self.weights = empty(pairs, dtype=torch.float32)
        self.experts = empty(tiles)  # of each tile
        self.done = torch.zeros_like(empty(1 + -(-num_tokens // ROUTED)))
        self.inner = empty(pairs, inner, dtype=like.dtype)
        self.outer = empty(pairs, like.shape[1] if pairs else 0, dtype=like.dtype)


def _step(depth: int) -> int:
    """The number of inputs that a product with this many inputs takes at a time."""
    return next((step for step in STEPS if depth % step == 0), STEPS[1])


def _tile(kernel: str, matrix: Any, places: int, memory: int) -> Tile:
    """The tile of a product with the experts' matrices. Its rows are places for (token, expert)
    pairs, fewer than requested if a program lacks the memory."""
    if isinstance(matrix, Packed):
        about, depth = NUMBERS[matrix.number], matrix.shape[1]
        return packed_tile(kernel, places, about, matrix.part, depth, memory)
    return Tile(COLUMNS, _step(matrix.shape[-1]), WARPS, STAGES, places)


def tiles_of(experts: ExpertWeights, num_tokens: int, memory: int) -> tuple[Tile, Tile]:
    """The tiles of both products of a pass of this many tokens, which have the same rows."""
    places = FEW_PLACES if num_tokens <= FEW_TOKENS else MANY_PLACES
    while True:
        opening = _tile("gate_up", experts.gate_up, places, memory)
        closing = _tile("expert_down", experts.down, places, memory)
        if opening.rows == closing.rows == places:
            return opening, closing
        places = min(opening.rows, closing.rows)


def queue_experts(
    w: Weights, experts: ExpertWeights, num_tokens: int, rows: Any, source: Any, squares: Any,
    scratch: ExpertScratch, memory: int,
) -> None:  # fmt: skip
    """Queue the outputs of the experts of each token: `scratch.outer` (M * chosen, K), to be added
    up with `scratch.weights`.

    rows: (M,), negative for padding.  source, squares: the tokens, and their sums of squares.
    memory: bytes that the tiles of a program may take.
    """
    pdl, m = dependent_launch(source.device), num_tokens
    form, inner, (alpha, limit) = experts.form, experts.inner, w.form.clamp
    opening, closing = tiles_of(experts, m, memory)
    places = opening.rows
    pairs = m * form.chosen
    tiles = min(pairs, form.total + pairs // places)
    common = {"K": w.hidden, "P": squares.shape[1], **pdl}
    route[(-(-m // ROUTED), -(-form.total // ROUTED))](
        source, squares, experts.router, experts.router_bias, rows, scratch.scores,
        scratch.chosen, scratch.weights, scratch.order, scratch.experts, scratch.done, m, tiles,
        w.eps, E=form.total, EP=triton.next_power_of_2(max(form.total, ROUTED)), TOP=form.chosen,
        TP=triton.next_power_of_2(form.chosen), BN=ROUTED, MP=ROUTED, TILE=places,
        BIAS=experts.router_bias is not None, NORMED=form.is_normed, BK=_step(w.hidden),
        num_warps=WARPS, num_stages=STAGES, **common,
    )  # fmt: skip
    open_experts[(tiles, -(-inner // opening.columns))](
        x=source, squares=squares, bias=experts.gate_up_bias, order=scratch.order,
        experts=scratch.experts, y=scratch.inner, eps=w.eps, alpha=alpha, limit=limit, D=inner,
        TOP=form.chosen, BN=opening.columns, BK=opening.depth, MP=places,
        BIAS=experts.gate_up_bias is not None, KIND=w.form.activation, TURNS=form.takes_turns,
        num_warps=opening.warps, num_stages=opening.stages,
        **operand(experts.gate_up), **common,
    )  # fmt: skip
    close_experts[(tiles, -(-w.hidden // closing.columns))](
        x=scratch.inner, bias=experts.down_bias, order=scratch.order, experts=scratch.experts,
        y=scratch.outer, N=w.hidden, D=inner, BN=closing.columns, BK=closing.depth, MP=places,
        BIAS=experts.down_bias is not None, num_warps=closing.warps, num_stages=closing.stages,
        **operand(experts.down), **pdl,
    )  # fmt: skip
