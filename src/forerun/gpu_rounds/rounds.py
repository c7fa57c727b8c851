"""A whole round as one captured graph: draft steps, the pass, the decision, and the next inputs.

All inputs of a round are on the device: the last tokens of each text, where they are stored, seeds,
positions and temperatures. The round itself updates them, so the next one can be launched before
the host has seen the results, which are one small table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from forerun.base.capturing import captured
from forerun.engine.request import Report
from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.kernels.lanes import advance, target_inputs
from forerun.gpu.shapes import PER_SEGMENT, PassShape
from forerun.gpu.storage import Storage
from forerun.gpu_rounds.blocks import Block, Part, num_segments
from forerun.gpu_rounds.draft_steps import HeadsSteps, Hearing, ModelSteps, Pass
from forerun.gpu_rounds.edits import Edits
from forerun.gpu_rounds.lanes import Lanes
from forerun.gpu_rounds.likeliest import Likeliest
from forerun.gpu_rounds.turns import Turn
from forerun.grammars.base import Words
from forerun.kernels.decide import Round, decide_block, decide_match, decide_ratio, sample
from forerun.kernels.scratch import CutScratch, Outcome
from forerun.kernels.scratch import Scratch as DecisionScratch
from forerun.kernels.truncation import find_thresholds
from forerun.noise.addresses import Purpose
from forerun.trees.tree import Tree

WIDEST = 16
"""The most tokens that a lane is fed. The kernels between passes are compiled for this many."""
FEWEST_LANES = 32
"""The kernels between passes are compiled for at least this many lanes."""
ALIGNED = 16
"""If rows have a multiple of this many logits, each begins at an address that kernels read
fastest."""
DECISIONS = {"match": decide_match, "ratio": decide_ratio, "block": decide_block}


class RoundShape(NamedTuple):
    """The settings that are fixed when a round is captured."""

    num_lanes: int
    draft_length: int
    num_chunks: int  # of attention, for the longest text
    rule: str
    draws: bool  # the draft is made on the device; otherwise there is none, or the host makes it
    cuts: bool = False  # some lane cuts its laws by top-k, top-p or min-p
    edits: bool = False  # some lane has penalties, a bias or bans
    num_likely: int | None = None  # likeliest tokens at each place; None: no log-probabilities
    masks: bool = False  # some lane has a grammar, whose masks the decision awaits
    layers: tuple[int, ...] = ()  # of the target, whose hidden states are kept
    tree: Tree | None = None  # that drafts fill, in level order; None: drafts are chains
    block: int = 0  # tokens of prompts beside the lanes, in rounds without drafts

    @property
    def is_tree(self) -> bool:
        """Whether the draft is a tree."""
        return self.tree is not None and self.draft_length > 0

    @property
    def num_nodes(self) -> int:
        """The number of tokens of a draft; for a tree, `draft_length` is the height."""
        return len(self.tree) if self.tree and self.draft_length else self.draft_length

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all lanes in the pass."""
        return self.num_lanes * (self.num_nodes + 1)


class CapturedRound:
    """A captured round of one shape."""

    def __init__(
        self, shape: RoundShape, lanes: Lanes, target: Storage, draft: Storage | None
    ) -> None:
        self.shape, self.lanes = shape, lanes
        vocab = target.weights.head.shape[0]
        self.vocab_size = vocab
        self._edits = lanes.make_edits(vocab) if shape.edits else None
        self._masks = lanes.make_masks(vocab) if shape.masks else None
        self._target, self.draft = target, draft
        device = target.weights.head.device
        b, k = shape.num_lanes, shape.num_nodes
        self.drafts = torch.zeros((b, k), dtype=torch.int64, device=device)
        self._lengths = torch.zeros(b, dtype=torch.int32, device=device)
        self._outcome = Outcome.allocate(b, device)
        self._scratch = DecisionScratch.allocate(
            b, k + 1, vocab, device, for_match_only=shape.rule == "match"
        )
        self._results = torch.zeros((b, k + 4), dtype=torch.int32, device=device)
        is_heard = isinstance(draft, HeadsStorage)
        self._likeliest = None
        if shape.num_likely is not None:
            parents = range(-1, k - 1) if shape.tree is None or not k else shape.tree.parents
            above = [parent + 1 for parent in parents]
            self._likeliest = Likeliest(b, above, shape.num_likely, device)
        drafts = self.drafts if shape.masks and k else None
        likely = None if self._likeliest is None else self._likeliest.table
        self._turns = [
            Turn(
                self._results, drafts, None if is_heard else self._states(shape.num_tokens), likely
            )
            for _ in range(2)
        ]
        self._watched = self._states(shape.num_tokens + shape.block)
        self._logits = target.logits("round", shape.num_tokens)
        self._pass = Pass(target, self._pass_shape(), self._logits, self._watched, shape.layers)
        self._sizes = {"LANES": b, "PADDED": max(FEWEST_LANES, _padded(b))}
        self._draft_logits: Any = None
        if shape.draws and k:
            assert draft is not None
            self._prepare_drafting(draft)
        self._hearing = None
        if isinstance(draft, HeadsStorage) and not shape.is_tree:
            self._hearing = Hearing(draft, self._pass.inputs, self._watched, shape.num_tokens)
        self._block = None
        if shape.block:
            self._block = Block(shape.block, self._pass.inputs, shape.num_tokens, b)
        self._thresholds = self._draft_thresholds = self._parents = None
        if shape.cuts:
            self._thresholds = torch.empty((b, k + 1), device=device)
            self._draft_thresholds = torch.empty((b, k), device=device)
            self._step_thresholds = torch.empty((b, 1), device=device)
            self._cuts = CutScratch.allocate(b * (k + 1), vocab, device)
        # The kernels, in one graph; where masks are made meanwhile, in three.
        self._stages: list[Callable[[], None]] = [self.queue]
        if shape.masks:
            self._stages = [self._queue_inputs, self._pass.queue, self._queue_decision]
        self._graphs: list[Any] = []

    def _pass_shape(self) -> PassShape:
        shape, count = self.shape, self.shape.num_tokens
        made = PassShape(count, count, shape.num_lanes, shape.num_nodes + 1, shape.num_chunks)
        if not shape.block:
            return made
        return made._replace(
            num_tokens=count + shape.block,
            num_segments=shape.num_lanes + num_segments(shape.block),
            per_segment=PER_SEGMENT,
            has_block=True,
        )

    def _prepare_drafting(self, draft: Storage) -> None:
        b, chunks, device = self.shape.num_lanes, self.shape.num_chunks, self.drafts.device
        needs_laws = self.shape.rule != "match"
        self._step_logits = draft.logits("step", b)
        vocab = self._step_logits.shape[1]
        if needs_laws:
            length = self.shape.draft_length
            self._draft_logits = draft.logits("draft", b * length).view(b, length, vocab)
        # The logits of a single lane are written where they are kept, if that keeps them aligned.
        self._is_direct = needs_laws and b == 1 and vocab % ALIGNED == 0
        self._steps: ModelSteps | HeadsSteps
        if isinstance(draft, HeadsStorage):
            self._steps = HeadsSteps(draft, b, chunks)
        else:
            self._steps = ModelSteps(draft, b, chunks, self._sizes)
        self._sampled = Outcome.allocate(b, device)
        self._sampling = DecisionScratch.allocate(b, 1, vocab, device)
        self._places = torch.zeros(b, dtype=torch.int64, device=device)

    @property
    def is_ready(self) -> bool:
        """Whether the round is captured, or runs on a device that cannot capture."""
        return bool(self._graphs) or not self.drafts.is_cuda

    def prepare(self) -> None:
        """Capture the round, unless it was captured before."""
        if not self.is_ready:
            self._capture()

    def guess(self, drafts: Sequence[Sequence[int]]) -> None:
        """Copy drafts that were made on the host, one per lane, to the device."""
        table = torch.zeros(self.drafts.shape, dtype=torch.int64)
        for lane, tokens in enumerate(drafts):
            table[lane, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        self.drafts.copy_(table, non_blocking=True)

    def read(self, parts: Sequence[Part]) -> None:
        """Set the parts of prompts that the next launch reads."""
        if self._block is not None:
            self._block.put(parts)

    def launch(self) -> Turn:
        """Queue the round. Returns a `Turn`, with which to wait for its results."""
        self.prepare()
        self._turns.reverse()
        turn = self._turns[0]
        self._run(0)
        if self._masks is not None:
            if self.shape.num_nodes:
                turn.send_drafts(self.drafts)
            self._run(1)
        return turn

    def leave(self, rows: Sequence[int]) -> None:
        """Let the rest of the round launched last write nothing to these rows."""
        gone = torch.tensor(rows, dtype=torch.int32).to(self.lanes.rows.device)
        for table in (self.lanes.rows, self._pass.inputs.rows):
            table.masked_fill_(torch.isin(table, gone), -1)

    def decide(self, turn: Turn, by_host: Mapping[int, int], masks: Mapping[int, Words]) -> None:
        """Queue the decision of the round launched last, and the copies of its results to the host.

        by_host: the lanes that the host decides, with the number of tokens each drafts. masks: the
        masks of grammars, by row of the logits.
        """
        if self._masks is not None:
            self._masks.put(masks)
            self._run(2)
        rows = self._logits.view(self.shape.num_lanes, self.shape.num_nodes + 1, -1)
        logits = {lane: rows[lane, : length + 1] for lane, length in by_host.items()}
        likely = None if self._likeliest is None else self._likeliest.table
        turn.send(self._results, self._watched, likely, logits)

    def _run(self, stage: int) -> None:
        if self._graphs:
            self._graphs[stage].replay()
        else:
            self._stages[stage]()

    def states(self, turn: Turn, lane: int, count: int) -> Any:
        """The hidden states (count, F) of the first tokens that a lane was fed: the last token of
        its text, then its draft."""
        first = lane * (self.shape.draft_length + 1)
        return turn.states[first : first + count].clone()

    def reports(self, turn: Turn, lane: int, path: Sequence[int]) -> list[Report]:
        """The log-probabilities of the tokens that a lane emits, if the round computes them."""
        if self._likeliest is None:
            return []
        return self._likeliest.reports(turn.likely(lane), path)

    def _states(self, num_tokens: int) -> Any:
        """Memory for the hidden states of this many tokens; None if they are not needed."""
        shape, weights = self.shape, self._target.weights
        if not shape.layers:
            return None
        return self._target.scratch.x.new_zeros((num_tokens, len(shape.layers) * weights.hidden))

    def _capture(self) -> None:
        """Run the round once on unused lanes, which compiles its kernels, and then capture it."""
        rows = self.lanes.rows.clone()
        self.lanes.rows.fill_(-1)
        try:
            self.queue()
            self._graphs = [captured(stage, rows.device)[0] for stage in self._stages]
        finally:
            self.lanes.rows.copy_(rows)

    def queue(self) -> None:
        """Launch the kernels of the round."""
        self._queue_inputs()
        self._pass.queue()
        self._queue_decision()

    def _queue_decision(self) -> None:
        """Launch the kernels that follow the target's pass."""
        shape, lanes = self.shape, self.lanes
        if self._edits is not None:
            self._queue_edits(self._edits)
        if self._masks is not None:
            self._masks.apply(self._logits)
        logits = self._logits.view(shape.num_lanes, shape.num_nodes + 1, -1)
        if self._thresholds is not None:
            find_thresholds(
                logits, self._lengths, lanes.temperature, lanes.top_k, lanes.top_p, lanes.min_p,
                self._thresholds, self._cuts, more=1,
            )  # fmt: skip
        has_laws = self._draft_logits is not None
        made = Round(
            logits, self.drafts, self._lengths, lanes.temperature, lanes.seeds, lanes.output,
            draft_logits=self._draft_logits, parents=self._parents, thresholds=self._thresholds,
            draft_thresholds=self._draft_thresholds if has_laws else None,
        )  # fmt: skip
        DECISIONS[shape.rule](made, self._scratch, self._outcome)
        if self._likeliest is not None:
            self._likeliest.queue(logits, self.drafts, self._outcome)
        self._queue_end()

    def _queue_inputs(self) -> None:
        """Launch the draft, if there is one, and the kernels that write the inputs of the target's
        pass."""
        lanes, k = self.lanes, self.shape.draft_length
        draws = self.shape.draws and k > 0
        if draws:
            self._queue_draft()
        inputs = self._pass.inputs
        target_inputs[(1,)](
            lanes.last, self._sampled.extra if draws else self.drafts, self.drafts, lanes.asked,
            lanes.rows, lanes.stored, lanes.remaining, self._lengths, inputs.ids, inputs.rows,
            inputs.slots, inputs.positions, inputs.segments, inputs.picked, K=k, DRAWN=draws,
            V=self._logits.shape[1], WIDE=WIDEST, **self._sizes,
        )  # fmt: skip
        if self._block is not None:
            self._block.queue()

    def _queue_edits(self, edits: Edits) -> None:
        """Launch the penalties, bias and bans on the target's logits."""
        k = self.shape.draft_length
        edits.apply(self._logits, self.drafts, self.lanes.output, num_rows=k + 1)

    def _queue_end(self) -> None:
        """Launch the kernels that follow the decision."""
        if self._edits is not None:
            self._edits.note(self._outcome, self.drafts, self.lanes)
        if self._hearing is not None:
            self._hearing.queue(self._outcome, self.drafts)
        self._advance()

    def _advance(self) -> None:
        """Launch the kernel that updates the lanes and writes the results."""
        lanes, out, k = self.lanes, self._outcome, self.shape.num_nodes
        advance[(1,)](
            out.accepted, out.extra, out.fault, out.reached, self.drafts, lanes.previous,
            lanes.last, lanes.rows, lanes.stored, lanes.remaining, lanes.output, self._results,
            K=k, WIDE=max(WIDEST, _padded(k)), **self._sizes,
        )  # fmt: skip

    def _queue_draft(self) -> None:
        lanes = self.lanes
        purpose = Purpose.TARGET if self.shape.rule == "match" else Purpose.DRAFT
        for step in range(self.shape.draft_length):
            logits, kept = self._step_logits, self._draft_logits
            if kept is not None and self._is_direct:
                logits = kept[:, step]
            self._steps.queue(step, lanes, self._sampled, self.drafts, logits)
            if self._edits is not None:
                self._edits.apply(logits, self.drafts, lanes.output, num_rows=1, first=step)
            positions = lanes.output
            if purpose is Purpose.TARGET and step:
                torch.add(lanes.output, step, out=self._places)
                positions = self._places
            cuts = None
            if self._draft_thresholds is not None:
                cuts = self._step_thresholds
                find_thresholds(
                    logits[:, None], self._sampling.no_tokens, lanes.draft_temperature,
                    lanes.top_k, lanes.top_p, lanes.min_p, cuts, self._cuts, more=1,
                )  # fmt: skip
                self._draft_thresholds[:, step].copy_(cuts[:, 0])
            sample(
                logits, lanes.draft_temperature, lanes.seeds, positions, purpose, step,
                self._sampling, self._sampled, thresholds=cuts,
            )  # fmt: skip
            if kept is not None and not self._is_direct:
                kept[:, step].copy_(logits)


def _padded(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
