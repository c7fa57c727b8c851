"""Runs a block network on the lean CPU pass: the results of `TorchBlockRunner` in one compiled
call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from forerun.drafters.heads.design import BlockDesign
from forerun.drafters.heads.lean_runner import rotary
from forerun.drafters.heads.runner import Logits
from forerun.lean import compiler
from forerun.lean.attention import HeadShape
from forerun.lean.block_pass import (
    NUM_STAGES,
    PER_LAYER,
    BlockLevel,
    BlockScratch,
    BlockWeights,
    guess,
)
from forerun.lean.crew import Crew
from forerun.lean.held import hold
from forerun.lean.joining import Part, join
from forerun.lean.linear import Floats, make_limbs
from forerun.lean.pages import Pages
from forerun.lean.plan import MOST_TOKENS, Lot, passes
from forerun.lean.storage import padded

PRODUCTS = ("qkv", "output", "gate_up", "down")
CONVS = ("conv_attention", "conv_mlp")
Embeddings = Callable[[Any], Any]
"""Rows (N, D) of the target's embedding, by their tokens (N,)."""


def take(design: BlockDesign, weights: Mapping[str, Floats]) -> BlockWeights:
    """Copy the weights into panels, in the fewest bits that keep them exactly."""
    layers = [f"layers.{number}" for number in range(design.num_layers)]
    inside = (*PRODUCTS, *(f"{name}.kernel" for name in CONVS if design.conv_taps))
    products = ["fuse", *(f"{layer}.{name}" for layer in layers for name in inside), "head"]
    parts = []
    for name in products:
        values, count = weights[f"{name}.weight"], 2 if name.endswith("gate_up") else 1
        if name == "head" and design.selector_rank:
            values = np.concatenate([values, weights["selector.weight"]])
        bias = weights.get(f"{name}.bias", np.zeros(len(values), np.float32))
        pieces, biases = np.split(values, count), np.split(bias, count)
        parts.append(Part(pieces, biases, takes_turns=count > 1))
    of_heads = np.ones((design.num_layers, 2, design.head_size), np.float32)
    if design.has_head_norms:
        names = [[f"{layer}.norm_{part}.weight" for part in ("query", "key")] for layer in layers]
        of_heads = np.array([[weights[name] for name in both] for both in names], np.float32)
    of_layers = [[weights[f"{at}.{name}.weight"] for name in ("norm", "norm_mlp")] for at in layers]
    of_convs = np.empty((design.num_layers, 2, 2, 0, design.hidden_size), np.float32)
    if design.conv_taps:
        bases = [[weights[f"{layer}.{name}.base"] for name in CONVS] for layer in layers]
        of_convs = np.array(bases, np.float32)
    of_states = weights.get("norm_layers.weight", np.empty(0, np.float32))
    return BlockWeights(
        matrices=join(parts, is_coarse=True),
        state_norms=of_states.reshape(design.norm_parts, -1 if len(of_states) else 0),
        norms=np.stack([weights[f"{name}.weight"] for name in ("norm_feature", "norm_head")]),
        layer_norms=np.array(of_layers, np.float32),
        head_norms=of_heads,
        heads=HeadShape(
            queries=design.num_heads,
            keys=design.num_kv_heads,
            size=design.head_size,
            wide=padded(design.head_size),
            scale=np.float32(design.head_size**-0.5),
            has_norms=design.has_head_norms,
            eps=np.float32(design.norm_eps),
        ),
        eps=np.float32(design.norm_eps),
        bases=of_convs,
        group=design.conv_group,
        block_size=design.block_size,
    )


class LeanBlockRows:
    """Keys and values of the tokens that the target has processed, and after them those of the
    block."""

    def __init__(self, runner: LeanBlockRunner, num_rows: int) -> None:
        weights = runner.weights
        self.lengths = [0] * num_rows
        num_layers = len(weights.layer_norms)
        self.pages = Pages(num_layers, num_rows, weights.heads, rotary(runner.design))
        self.scratch = make_scratch(runner.design, weights, MOST_TOKENS)


class LeanBlockRunner:
    """Computes what `TorchBlockRunner` does, in float32 on the CPU, for a target that also runs
    there."""

    def __init__(
        self,
        design: BlockDesign,
        weights: Mapping[str, Floats],  # as `BlockNetwork.state_dict` names them
        embeddings: Embeddings,
        num_threads: int | None = None,
    ) -> None:
        self.design = design
        self.weights = take(design, weights)
        self._embeddings = embeddings
        self._crew = Crew(num_threads)

    def start(self, num_rows: int, capacity: int) -> LeanBlockRows:
        return LeanBlockRows(self, num_rows)

    def extend(
        self,
        state: LeanBlockRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        """Append tokens that the target has processed, and guess what follows: logits
        (R, N, Vd), and after them what a selector reads, if there is one."""
        size = self.design.block_size
        width = self.design.num_tokens + self.design.selector_rank
        logits = np.empty((len(rows) * size, width), np.float32)
        last: list[tuple[int, Floats, int | None, int]] = []  # of the pass with the next blocks
        room = MOST_TOKENS
        for index, (row, part) in enumerate(zip(rows, features, strict=True)):
            states = np.asarray(part, np.float32)
            cut = max(0, len(states) - (MOST_TOKENS - size))
            for begin in range(0, cut, MOST_TOKENS):
                end = min(cut, begin + MOST_TOKENS)
                self._run(state, [(row, states[begin:end], None, 0)], logits)
            count = len(states) - cut + size
            if count > room:
                self._run(state, last, logits)
                last, room = [], MOST_TOKENS
            last.append((row, states[cut:], tokens[index][-1], index * size))
            room -= count
        self._run(state, last, logits)
        found = logits.reshape(len(rows), size, -1)
        return found if self.design.anchor_guesses else found[:, 1:]

    def release(self, state: LeanBlockRows, row: int) -> None:
        state.lengths[row] = 0
        state.pages.cut(row, 0)

    def _run(
        self,
        state: LeanBlockRows,
        parts: Sequence[tuple[int, Floats, int | None, int]],
        logits: Logits,
    ) -> None:
        """Run one pass. Each part is a row, the hidden states of its tokens, the anchor of its
        block (None if no block follows), and the index of its first logits."""
        lots = list(self._lots(state, parts))
        heads, design = self.weights.heads, self.design
        (plan,) = passes(lots, heads.queries, heads.keys, logits_only=True)
        anchors = [anchor for _, _, anchor, _ in parts if anchor is not None]
        ids = [[anchor, *[design.mask_token] * (design.block_size - 1)] for anchor in anchors]
        slots = plan.slots.copy()
        slots[plan.logit_tokens] = plan.before[plan.logit_tokens] - 1
        level = BlockLevel(
            plan=plan,
            sight=plan._replace(slots=slots),
            told=np.flatnonzero(plan.logit_of < 0),
            states=np.concatenate([states for _, states, _, _ in parts]),
            begun=self._embedded(np.array(ids, np.int64).reshape(-1)),
            logits=logits,
        )
        held = hold((self.weights, state.pages.cache, state.scratch, level))
        compiler.wait()
        self._crew.run(NUM_STAGES + PER_LAYER * (design.num_layers - 1), guess, held)

    def _embedded(self, ids: Any) -> Floats:
        """The inputs (N, D) of entries with these tokens."""
        table = np.asarray(self._embeddings(ids), np.float32)
        return table * np.float32(self.design.embedding_scale)

    def _lots(self, state: LeanBlockRows, parts: Sequence[Any]) -> Iterator[Lot]:
        for row, states, anchor, place in parts:
            begin, count = state.lengths[row], len(states)
            size = 0 if anchor is None else self.design.block_size
            state.lengths[row] = begin + count
            end = begin + count + size
            state.pages.reserve(row, begin, end)
            slots = np.arange(begin, end)
            places = np.full(end - begin, -1)
            places[count:] = place + np.arange(size)
            before = slots + 1
            before[count:] = end
            none = np.empty(0, np.int64)
            yield Lot(
                row, [0] * len(slots), slots, slots, before, none, np.zeros_like(slots), places
            )


def make_scratch(design: BlockDesign, weights: BlockWeights, num_tokens: int) -> BlockScratch:
    """Allocate the memory for passes of up to num_tokens tokens."""
    heads, hidden = weights.heads, design.hidden_size
    inner = heads.queries * heads.size

    def room(*shape: int) -> Floats:
        return np.empty(shape, np.float32)

    of_convs = num_tokens if design.conv_taps else 0
    return BlockScratch(
        states=room(num_tokens, design.num_features),
        features=room(num_tokens, hidden),
        inputs=room(num_tokens, hidden),
        qkv=room(num_tokens, inner + 2 * heads.keys * heads.size),
        queries=room(heads.keys, num_tokens * (heads.queries // heads.keys), heads.size),
        mixed=room(num_tokens, inner),
        gathered=room(num_tokens, inner),
        hidden=room(num_tokens, hidden),
        normed=room(num_tokens, hidden),
        inner=room(num_tokens, design.mlp_size),
        kernels=room(of_convs, 2 * design.conv_taps * hidden // design.conv_group),
        shifted=room(of_convs, hidden),
        added=room(of_convs, hidden),
        limbs=make_limbs(weights.matrices, num_tokens),
    )
