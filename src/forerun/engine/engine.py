"""Rounds over a set of slots: propose, score, verify, commit.

Requests enter free slots before a round and leave them after it, so one prompt, many prompts and
a server are the same loop.  A round without a drafter, or with a drafter that has nothing to
say, is plain decoding: the draft is simply empty.  A draft is a tree, and most are chains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.arrays import to_numpy
from forerun.clock import now
from forerun.drafters.base import Drafter, Outcome
from forerun.drafters.likeliest import likeliest
from forerun.engine.drafting import Drafting
from forerun.engine.laws import DraftLaws, TargetLaws
from forerun.engine.proposal import Proposal
from forerun.engine.request import Request
from forerun.engine.walk import TargetNoise, walk
from forerun.models.base import LanguageModel
from forerun.noise import Key, seed_key
from forerun.rules.base import Rule, Trial
from forerun.rules.match import Match
from forerun.tree import ROOT, Tree
from forerun.types import DraftLength

XP = compat.array_namespace(np.empty(0))
Row = np.ndarray[Any, Any]


class Engine:
    """Slots of one target and one drafter, and the requests that wait for them."""

    def __init__(
        self,
        target: LanguageModel,
        *,
        drafter: Drafter | None,
        draft_length: DraftLength,
        tree: int | Tree | None = None,
        rule: Rule,
        num_slots: int,
        capacity: int,
    ) -> None:
        self.target = target
        self.rule = rule
        self.waiting: deque[Request] = deque()
        self.slots: list[Request | None] = [None] * num_slots
        self._drafting = Drafting(drafter, target, rule, draft_length, tree)
        num_nodes = 0 if tree is None else len(tree) if isinstance(tree, Tree) else tree
        self._state = target.start(num_slots, capacity + num_nodes)
        self._drafting.start(num_slots, capacity, self._state)
        self._key: Key | None = None  # of the occupied slots, until one of them changes
        self._noise_drawn: dict[int, Any] = {}  # and noise for the positions ahead of them

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(self.slots)

    def close(self) -> None:
        """Give up what is not finished; what was generated so far stays in the requests."""
        self.waiting.clear()
        for row, request in enumerate(self.slots):
            if request is not None:
                self._leave(row)
        self._drafting.close()

    def step(self) -> list[tuple[Request, int]]:
        """One round for every occupied slot: (request, number of tokens it gained)."""
        self._admit()
        rows = [row for row, request in enumerate(self.slots) if request is not None]
        active = [request for request in self.slots if request is not None]
        times = [now()]
        drafts = self._drafting.propose(rows, active)
        times.append(now())
        logits = self._score(rows, active, drafts)
        times.append(now())
        laws, paths, extra = self._verify(active, drafts, logits)
        times.append(now())
        gained = self._commit(rows, active, drafts, laws, paths, extra)
        times.append(now())
        spent = [later - sooner for sooner, later in pairwise(times)]
        self._drafting.learn(rows, active, drafts, paths, spent)
        for row, request in zip(rows, active, strict=True):
            request.stats.count_seconds(*spent)
            if request.finish_reason is not None:
                self._leave(row)
        return list(zip(active, gained, strict=True))

    def _admit(self) -> None:
        for row, occupant in enumerate(self.slots):
            if occupant is None and self.waiting:
                request = self.waiting.popleft()
                self._drafting.welcome(row, request)
                self.slots[row], self._key = request, None

    def _leave(self, row: int) -> None:
        self.slots[row] = self._key = None
        others = {other: each for other, each in enumerate(self.slots) if each is not None}
        self._drafting.release(row, others)
        self.target.release(self._state, row)

    def _score(
        self, rows: Sequence[int], requests: Sequence[Request], drafts: Sequence[Proposal]
    ) -> Row:
        """Target logits (R, K + 1, V) after the text and after each guess, on the host."""
        feeds = [
            request.tokens[self._state.lengths[row] :] + draft.tokens
            for row, request, draft in zip(rows, requests, drafts, strict=True)
        ]
        wanted = [len(draft.tokens) + 1 for draft in drafts]
        if all(draft.tree is None for draft in drafts):
            return to_numpy(self.target.score(self._state, rows, feeds, wanted))
        parents = [None if draft.tree is None else draft.tree.parents for draft in drafts]
        return to_numpy(self.target.score(self._state, rows, feeds, wanted, parents))

    def _verify(
        self, requests: Sequence[Request], drafts: Sequence[Proposal], logits: Row
    ) -> tuple[TargetLaws, list[Sequence[int]], list[int]]:
        """Let the rule decide: the laws it read, the accepted nodes, and the tokens after them."""
        if self._key is None:
            self._key = seed_key(XP, [request.seed for request in requests], None)
            self._noise_drawn = {}
        positions = np.array([request.num_output for request in requests])
        noise = TargetNoise(XP, self._key, positions, drawn=self._noise_drawn)
        if type(self.rule) is Match:
            laws = TargetLaws(requests, drafts, logits, only_sampled=True)
            return laws, *walk(drafts, laws, noise)
        laws = TargetLaws(requests, drafts, logits)
        lengths = np.array([len(draft.tokens) for draft in drafts])
        tokens = np.zeros((len(drafts), int(lengths.max())), dtype=np.int64)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft.tokens)] = draft.tokens
        trees = None
        if any(draft.tree is not None for draft in drafts):
            trees = [draft.tree or Tree.chain(len(draft.tokens)) for draft in drafts]
        draft_laws = DraftLaws(drafts, self.target.vocab_size)
        trial = Trial(XP, tokens, lengths, laws, draft_laws, trees=trees)
        reached, extra = self.rule.decide(trial, noise)
        ends = to_numpy(reached).tolist()
        paths = [draft.path(end - 1) for draft, end in zip(drafts, ends, strict=True)]
        return laws, paths, to_numpy(extra).tolist()

    def _commit(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafts: Sequence[Proposal],
        laws: TargetLaws,
        paths: Sequence[Sequence[int]],
        extra: Sequence[int],
    ) -> list[int]:
        """Append what each request keeps, tell the models, and count."""
        gained: list[int] = []
        kept: list[int | list[int]] = []
        outcomes: list[Outcome] = []
        for index, (row, request, draft) in enumerate(zip(rows, requests, drafts, strict=True)):
            path, last = paths[index], request.tokens[-1]
            num_pending = len(request.tokens) - self._state.lengths[row]
            tokens = [*(draft.tokens[node] for node in path), extra[index]]
            refused = draft.goes_on(path[-1] if path else ROOT)
            reported, fault = laws.settle(index, path)
            if fault is not None:
                tokens = tokens[: fault.num_sound]
            count = request.commit(tokens, len(path), refused, reported)
            if fault is not None and request.finish_reason is None:
                request.fail(fault.message, fault.error)
            accepted, refused = min(len(path), count), refused and count > len(path)
            request.stats.count_round(len(draft.tokens), draft.height, accepted, refused, count)
            gained.append(count)
            kept.append(_kept(num_pending, path[:count], draft))
            successors = self._successors([last, *draft.tokens], laws.logits[index])
            nodes, scored = draft.in_guess(path), len(draft.tokens)
            outcomes.append(Outcome(row, len(path), request.tokens, nodes, successors, scored))
        self.target.commit(self._state, rows, kept)
        self._drafting.observe(outcomes, requests)
        return gained

    def _successors(
        self, tokens: Sequence[int], logits: Row
    ) -> Sequence[tuple[int, Sequence[int]]]:
        """Scored tokens and the likeliest ones after each, for a drafter that learns from them."""
        if not self._drafting.num_successors:
            return ()
        found = likeliest(logits[: len(tokens)], self._drafting.num_successors)
        return list(zip(tokens, found.tolist(), strict=True))


def _kept(num_pending: int, path: Sequence[int], draft: Proposal) -> int | list[int]:
    """What a model keeps of its feed: the pending tokens and a path; of a chain, how many."""
    if draft.tree is None:
        return num_pending + len(path)
    return [*range(num_pending), *(num_pending + node for node in path)]
