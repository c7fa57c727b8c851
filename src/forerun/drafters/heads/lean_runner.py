"""Runs a drafting network on the lean CPU pass: the results of `TorchRunner` in one compiled call.

A whole line of guesses is one call too, which saves the time that Python takes between its levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from forerun.drafters.base import Turn
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.runner import Logits
from forerun.lean import compiler
from forerun.lean.attention import HeadShape
from forerun.lean.crew import Begun, Crew
from forerun.lean.heads_pass import NUM_STAGES, HeadsScratch, HeadsWeights, Level, draft
from forerun.lean.held import Holder, hold
from forerun.lean.joining import Part, join
from forerun.lean.line import Line, no_line
from forerun.lean.linear import Floats, make_limbs
from forerun.lean.pages import Pages, Rotary
from forerun.lean.plan import MOST_TOKENS, Ints, Lot, Plan, no_plan, passes
from forerun.lean.shape import TOKENS
from forerun.lean.storage import padded
from forerun.models.feed import Feed
from forerun.noise.philox import MASK
from forerun.sampling.options import Sampling

MATRICES = ("qkv", "output", "gate_up", "down", "head")
ONE = np.ones(1, np.float32)


def take(design: Design, weights: Mapping[str, Floats], embedding: Floats) -> HeadsWeights:
    """Copy the weights into panels, in the fewest bits that keep them exactly."""
    part = {name.removesuffix(".weight"): values for name, values in weights.items()}
    norms = ["norm_feature", "norm_embedding", "norm_mlp", "norm_head"]
    norms += ["norm"] * design.is_joined
    of_heads = [part.get(norm, ONE) for norm in ("norm_query", "norm_key")]
    of_states = part.get("norm_layers", np.empty(0, np.float32))
    parts = []
    for name in ("join" if design.is_joined else "fuse", *MATRICES):
        count = 2 if name == "gate_up" else 1
        bias = part.get(f"{name}.bias", np.zeros(len(part[name]), np.float32))
        pieces, biases = np.split(part[name], count), np.split(bias, count)
        parts.append(Part(pieces, biases, takes_turns=count > 1))
    return HeadsWeights(
        matrices=join(parts, is_coarse=True),
        embedding=embedding,
        state_norms=of_states.reshape(design.norm_parts, -1 if len(of_states) else 0),
        norms=np.stack([part[norm] for norm in norms]),
        joins=design.is_joined,
        norms_residual=design.norms_residual,
        norms_output=design.norms_output,
        head_norms=np.stack([np.broadcast_to(norm, design.head_size) for norm in of_heads]),
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
    )


def rotary(design: Design) -> Rotary:
    """A network's cosines and sines, made for ranges of positions."""
    frequencies, factor = design.rotation()

    def angles(begin: int, end: int) -> tuple[Floats, Floats]:
        turns = np.arange(begin, end, dtype=np.float32)[None, :, None] * frequencies
        cos, sin = np.cos(turns) * factor, np.sin(turns) * factor
        return cos.astype(np.float32), sin.astype(np.float32)

    return angles


def make_scratch(weights: HeadsWeights, num_tokens: int) -> HeadsScratch:
    """Allocate the memory for passes of up to num_tokens tokens."""
    heads, m = weights.heads, weights.matrices
    hidden, inner = weights.embedding.shape[1], heads.queries * heads.size

    def room(*shape: int) -> Floats:
        return np.empty(shape, np.float32)

    return HeadsScratch(
        hidden=room(num_tokens, int(m.depth[0])),
        features=room(num_tokens, hidden),
        joined=room(num_tokens, 2 * hidden),
        qkv=room(num_tokens, inner + 2 * heads.keys * heads.size),
        queries=room(heads.keys, num_tokens * (heads.queries // heads.keys), heads.size),
        mixed=room(num_tokens, inner),
        gathered=room(num_tokens, inner),
        normed=room(num_tokens, hidden),
        inner=room(num_tokens, int(m.depth[4])),
        limbs=make_limbs(m, num_tokens),
    )


LONGEST = 8  # guesses that a line has room for, at least


def line_for(turns: Sequence[Turn], ids: Ints) -> Line:
    """Allocate lines (chains of guesses) for these turns. Call `empty` on each before it is
    used."""
    samplings, whole = [turn.sampling for turn in turns], np.zeros((4, len(turns)), np.int64)
    size = len(turns), max(LONGEST, *(turn.height for turn in turns))
    return Line(
        ids=ids,
        rows=np.array([turn.row for turn in turns]),
        starts=whole[0],
        limits=whole[1],
        worths=np.zeros(len(turns)),
        goes_on=np.zeros(size),
        temperatures=np.array([float(sampling.temperature) for sampling in samplings]),
        top_k=np.array([sampling.top_k or len(ids) for sampling in samplings]),
        top_p=np.array([float(sampling.top_p) for sampling in samplings]),
        min_p=np.array([float(sampling.min_p) for sampling in samplings]),
        seeds=np.array([(turn.seed & MASK, turn.seed >> 32) for turn in turns], np.uint64),
        positions=whole[2],
        is_open=np.zeros(len(turns), np.bool_),
        tokens=np.zeros(size, np.int64),
        values=np.zeros(size),
        counts=whole[3],
    )


def serves(line: Line, first: Sequence[Turn], turns: Sequence[Turn]) -> bool:
    """Whether lines made for the turns `first` can be reused for `turns`, as in successive rounds
    of one text."""
    return len(first) == len(turns) and all(
        old.row == new.row
        and old.sampling is new.sampling
        and old.seed == new.seed
        and new.height <= line.tokens.shape[1]
        for old, new in zip(first, turns, strict=True)
    )


def empty(line: Line, index: int, turn: Turn, position: int, start: int) -> None:
    """Reset a line for a turn. start: the slot of its first guess."""
    line.starts[index] = start
    line.limits[index] = turn.height
    line.worths[index] = turn.worth
    line.goes_on[index] = 0.0
    line.goes_on[index, : len(turn.goes_on)] = turn.goes_on
    line.positions[index] = position
    line.counts[index] = 0
    line.is_open[index] = turn.height > 0


MOST_KEPT = TOKENS  # tokens of a pass that is kept for the next time
NO_STATES = np.empty((0, 0), np.float32)
NO_LINE, NO_PLAN = no_line(), no_plan()
Begin = Callable[..., Begun]


class Ask:
    """The preallocated arrays of a frequent kind of pass: a few tokens of one row, and the line of
    guesses after them. Between passes only the numbers in the arrays change."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.holder = Holder()


class LeanHeadsRows:
    """The rows' keys and values: first of verified entries, then of tentative nodes in their
    order."""

    def __init__(self, runner: LeanRunner, num_rows: int) -> None:
        weights = runner.weights
        self.lengths = [0] * num_rows  # verified entries
        self.paths: list[list[list[int]]] = [[] for _ in range(num_rows)]  # to each node, itself
        self.outputs: list[list[Any]] = [[] for _ in range(num_rows)]  # of the last entry and nodes
        self.pages = Pages(1, num_rows, weights.heads, runner.angles)
        self.scratch = make_scratch(weights, TOKENS)
        self.later = Level(NO_PLAN, NO_STATES, NO_STATES, NO_STATES)  # of the last line's rows
        self.line = NO_LINE  # the last one, and what it was made for
        self.turns: Sequence[Turn] = []
        self.asks: dict[tuple[int, int], Ask] = {}  # by row and number of tokens


class LeanRunner:
    """A `Runner` in float32 on the CPU, for a network whose target also runs there."""

    def __init__(
        self,
        design: Design,
        weights: Mapping[str, Floats],  # as `Network.state_dict` names them
        embedding: Floats,  # (V, D), the target's
        num_threads: int | None = None,
    ) -> None:
        self.weights = take(design, weights, embedding)
        self.angles = rotary(design)
        self._num_tokens = design.num_tokens
        self._num_features = design.num_features
        self._crew = Crew(num_threads)

    def start(self, num_rows: int, capacity: int) -> LeanHeadsRows:
        return LeanHeadsRows(self, num_rows)

    def extend(
        self,
        state: LeanHeadsRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        return self._extend(state, rows, features, tokens, NO_LINE)

    def extend_with_lines(
        self,
        state: LeanHeadsRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
        turns: Sequence[Turn],  # (R,)
        ids: Ints,  # (Vd,): the target's, of the network's own tokens
    ) -> tuple[Logits, list[tuple[list[int], list[float]]]]:
        """Like `extend`, but also draw a line of guesses after each row. Returns the logits, and
        for each row the guesses with their chances of being kept.

        The rows do not remember the guesses. The logits stay valid until the row is extended again.
        """
        line = self._line_of(state, turns, ids)
        for index, (turn, fed) in enumerate(zip(turns, tokens, strict=True)):
            empty(line, index, turn, turn.position, state.lengths[turn.row] + len(fed))
        if len(rows) == 1 and len(tokens[0]) <= MOST_KEPT:
            logits, begun = self._ask(state, features[0], tokens[0], self._crew.call)
            begun.finish()
        else:
            logits = self._extend(state, rows, features, tokens, line)
        return logits, [
            (line.tokens[index, :count].tolist(), line.values[index, :count].tolist())
            for index, count in enumerate(line.counts.tolist())
        ]

    def begin_line(
        self,
        state: LeanHeadsRows,
        turn: Turn,  # the last one of this row
        position: int,  # of the next
        features: Any,
        tokens: Sequence[int],
        ids: Ints,
    ) -> tuple[Logits, Line, Begun] | None:
        """Start `extend_with_lines` for one row without waiting for the result. Nothing else may
        run until the line is finished.

        Returns None if there is no helper thread, or if too many tokens have to be read first.
        """
        if self._crew.size == 1 or len(tokens) > MOST_KEPT:
            return None
        line = self._line_of(state, [turn], ids)
        empty(line, 0, turn, position, state.lengths[turn.row] + len(tokens))
        logits, begun = self._ask(state, features, tokens, self._crew.begin)
        return logits, line, begun

    def step(
        self,
        state: LeanHeadsRows,
        rows: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
    ) -> Logits:
        members: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            members.setdefault(row, []).append(index)
        order = [index for indices in members.values() for index in indices]
        features = np.stack([state.outputs[rows[i]][parents[i] + 1] for i in order])
        lots = []
        for row, indices in members.items():
            paths, length = state.paths[row], state.lengths[row]
            first = len(paths)
            for index in indices:
                parent = parents[index]
                paths.append([*(paths[parent] if parent >= 0 else ()), len(paths)])
            new = paths[first:]
            lots.append(
                Lot(
                    row,
                    ids=[tokens[index] for index in indices],
                    positions=np.array([length + len(path) - 1 for path in new]),
                    slots=np.arange(length + first, length + len(paths)),
                    before=np.full(len(new), length),
                    branch=length + np.concatenate(new),
                    num_branch=np.array([len(path) for path in new]),
                    places=np.array(indices),
                )
            )
        outputs, logits = self._run(state, lots, NO_STATES, features)
        for index, output in zip(order, outputs, strict=True):
            state.outputs[rows[index]].append(output)
        return logits

    def release(self, state: LeanHeadsRows, row: int) -> None:
        state.lengths[row] = 0
        state.paths[row], state.outputs[row] = [], []
        state.asks = {about: ask for about, ask in state.asks.items() if about[0] != row}
        state.pages.cut(row, 0)

    def _extend(
        self,
        state: LeanHeadsRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
        line: Line,
    ) -> Logits:
        lots = [
            Lot.of(row, state.lengths[row], Feed(fed), 0, _last(len(fed), index))
            for index, (row, fed) in enumerate(zip(rows, tokens, strict=True))
        ]
        parts = [np.ascontiguousarray(part, np.float32) for part in features]
        hidden = parts[0] if len(parts) == 1 else np.concatenate(parts)
        outputs, logits = self._run(state, lots, hidden, None, line)
        for row, fed, output in zip(rows, tokens, outputs, strict=True):
            state.lengths[row] += len(fed)
            state.paths[row], state.outputs[row] = [], [output]
        return logits

    def _ask(
        self, state: LeanHeadsRows, features: Any, tokens: Sequence[int], begin: Begin
    ) -> tuple[Logits, Begun]:
        """A version of `_extend` for a few tokens of the line's only row, which reuses arrays. The
        logits stay valid until the next call."""
        line = state.line
        row, count = state.turns[0].row, len(tokens)
        start = state.lengths[row]
        ask = state.asks.get((row, count))
        if ask is None:
            ask = state.asks[row, count] = self._new_ask(row, count)
        plan, hidden, outputs, logits = ask.level
        for index, token in enumerate(tokens):  # for so few, faster than whole arrays
            plan.ids[index] = token
            plan.slots[index], plan.before[index] = start + index, start + index + 1
        hidden[:] = features
        state.pages.reserve(row, start, start + count + line.tokens.shape[1])
        later = self._later(state, line)
        held = ask.holder(self.weights, state.pages.cache, state.scratch, ask.level, later, line)
        state.lengths[row] = start + count
        state.paths[row], state.outputs[row] = [], [outputs[0]]
        compiler.wait()
        return logits, begin(_num_stages(line), draft, held)

    def some_arguments(self) -> tuple[Any, ...]:
        """Example arguments of `draft`; the arguments of all other calls have the same types."""
        state, turn = self.start(1, 0), Turn(0, 1, Sampling(), seed=0, position=0)
        level, line = self._new_ask(0, 1).level, line_for([turn], np.zeros(1, np.int64))
        return self.weights, state.pages.cache, state.scratch, level, self._later(state, line), line

    def _line_of(self, state: LeanHeadsRows, turns: Sequence[Turn], ids: Ints) -> Line:
        """The lines for these turns, reused if possible; their contents are overwritten."""
        if state.line.ids is not ids or not serves(state.line, state.turns, turns):
            state.line, state.turns = line_for(turns, ids), turns
        return state.line

    def _new_ask(self, row: int, count: int) -> Ask:
        (plan,) = self._passes([Lot.of(row, 0, Feed([0] * count), 0, _last(count, 0))])
        hidden = np.empty((count, self._num_features), np.float32)
        return Ask(Level(plan._replace(positions=plan.slots), hidden, *self._results(1)))

    def _run(
        self,
        state: LeanHeadsRows,
        lots: Sequence[Lot],
        hidden: Floats,
        features: Floats | None,
        line: Line = NO_LINE,
    ) -> tuple[Floats, Logits]:
        """Run a pass. Returns the outputs and logits of the tokens that have logits, in their
        order.

        line: has a row for each lot, and continues from the lot's last token with logits.
        """
        for lot in lots:
            end = int(lot.slots[-1]) + 1 + line.tokens.shape[1]
            state.pages.reserve(lot.row, int(lot.slots[0]), end)
        outputs, logits = self._results(sum(int((lot.places >= 0).sum()) for lot in lots))
        plans = list(self._passes(lots))
        begin = done = 0
        for plan in plans:
            end, ready = begin + len(plan.ids), done + len(plan.logit_tokens)
            if end - begin > len(state.scratch.features):
                state.scratch = make_scratch(self.weights, min(MOST_TOKENS, 2 * (end - begin)))
            if features is not None:
                state.scratch.features[: end - begin] = features[begin:end]
            level = Level(plan, hidden[begin:end], outputs[done:ready], logits)
            self._draft(state, level, line if len(plans) == 1 else NO_LINE)
            begin, done = end, ready
        if len(plans) > 1 and len(line.limits):
            self._draft(state, Level(NO_PLAN, NO_STATES, outputs, logits), line)
        return outputs, logits

    def _draft(self, state: LeanHeadsRows, first: Level, line: Line) -> None:
        later = self._later(state, line) if len(line.limits) else first
        held = hold((self.weights, state.pages.cache, state.scratch, first, later, line))
        compiler.wait()
        self._crew.run(_num_stages(line), draft, held)

    def _later(self, state: LeanHeadsRows, line: Line) -> Level:
        """The arrays for the levels after a line's first guess. They are reused for the same rows,
        because making them takes as long as some of the matrix products."""
        if state.later.plan.rows is not line.rows:
            rows = enumerate(line.rows.tolist())
            lots = [Lot.of(row, 0, Feed([0]), 0, np.array([index])) for index, row in rows]
            (plan,) = self._passes(lots)
            plan = plan._replace(rows=line.rows)
            state.later = Level(plan, NO_STATES, *self._results(len(lots)))
        if len(line.rows) > 1:  # a row that ends before others still takes part in their levels
            plan = state.later.plan
            plan.slots[:] = plan.positions[:] = line.starts
            plan.before[:] = line.starts + 1
        return state.later

    def _results(self, count: int) -> tuple[Floats, Logits]:
        """Allocate arrays for `count` rows of outputs and logits."""
        hidden = self.weights.embedding.shape[1]
        return np.empty((count, hidden), np.float32), np.empty(
            (count, self._num_tokens), np.float32
        )

    def _passes(self, lots: Sequence[Lot]) -> Iterator[Plan]:
        heads = self.weights.heads
        return passes(lots, heads.queries, heads.keys, logits_only=True)


def _num_stages(line: Line) -> int:
    return NUM_STAGES * max(1, int(line.tokens.shape[1]))


def _last(count: int, place: int) -> Ints:
    """The places of logits for `count` tokens of which only the last has logits, at `place`."""
    places = np.full(count, -1)
    places[-1] = place
    return places
