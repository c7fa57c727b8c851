"""Adds drafting to the plan of a round: a given length, a given tree, or the length that pays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from forerun.drafters.base import Prices
from forerun.engine.drafting import Drafting
from forerun.engine.plan import DraftLimits, DraftPlan, RoundPlan
from forerun.engine.proposal import Drafted, check_tree, cut
from forerun.engine.request import Request
from forerun.engine.steering.ladder_policy import Ladder, LadderPolicy
from forerun.engine.steering.policy import Choice, PayingPolicy
from forerun.engine.steering.why_few import why_few
from forerun.models.base import LanguageModel
from forerun.models.handover import Shelf
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.trees.tree import Tree

TREE_HEIGHT = 5  # of trees whose draft length is left to us
POLICIES: Shelf[PayingPolicy] = Shelf()
"""Policies left by engines that have ended, by target and `policy_key`."""


class DraftPlanner:
    """Decides what each round asks of the drafter.

    draft_length: how many guesses may follow one another; "auto" for as many as pay.
    tree: None for a chain, a number of nodes for a tree of any shape, or a `Tree` to fill. A `Tree`
    sets the number of levels itself.
    """

    def __init__(
        self,
        drafting: Drafting,
        target: LanguageModel,
        rule: Rule,
        draft_length: DraftLength,
        tree: int | Tree | None,
    ) -> None:
        check_tree(tree, rule, target)
        self._drafting = drafting
        self._target = target
        self._rule = rule
        self._length = TREE_HEIGHT if draft_length == "auto" else draft_length
        self._tree = tree if tree is not None and getattr(target, "scores_trees", False) else None
        self._note: str | None = None
        if drafting.drafter is not None and self._tree is not tree:
            self._note = f"{target.name} cannot score trees, so drafts were chains"
        self._is_steered = draft_length == "auto" and not isinstance(self._tree, Tree)
        self._policy: PayingPolicy | None = None
        self._policy_key: Any = None
        self._requests: dict[int, Request] = {}  # by row, where a policy steers
        self._num_rows = 1  # answered in the latest round

    def start(self, num_rows: int, ladder: Ladder | None = None) -> None:
        """Take over what an earlier engine has learned.

        ladder: the draft lengths for which rounds were captured; None if any length is possible.
        """
        if self._drafting.drafter is None or not self._is_steered:
            return
        # Costs of a batch say little about a single request's, nor does what one rule keeps
        # say what another does.
        is_tree, has_coins = self._tree is not None, self._rule.needs_draft_probs
        rule = self._rule.name if has_coins else None
        self._policy_key = policy_key(self._drafting.drafter, num_rows, is_tree, rule)
        made = PayingPolicy
        if ladder is not None:
            made, self._policy_key = LadderPolicy, (self._policy_key, "ladder")
        self._policy = POLICIES.take(self._target, self._policy_key) or made(has_coins=has_coins)
        if isinstance(self._policy, LadderPolicy):
            self._policy.ladder = ladder

    def enter(self, row: int, request: Request) -> None:
        """Record that a request enters a row. If it is drafted for differently, its notes say
        why."""
        if self._policy is not None:
            self._policy.enter(row, request)
            self._requests[row] = request
        note = self._drafting.note or self._note
        request.stats.notes += [] if note is None else [note]

    def leave(self, row: int) -> None:
        """Record that the request of a row has ended. If little was drafted for it, its statistics
        say why."""
        if self._policy is not None:
            stats = self._requests.pop(row).stats
            stats.why_few = why_few(stats, self._policy.price(self._num_rows))
            self._policy.leave(row)

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """A copy of the plan that also contains what to ask of the drafter."""
        if self._drafting.drafter is None:
            return plan
        spans = [span for span in plan.answering if span.row not in self._drafting.abandoned]
        asked = [index for index, span in enumerate(spans) if span.request.is_drafted_for]
        if not asked:
            return plan
        requests = [span.request for span in spans]
        rooms = [request.limit - request.num_output - 1 for request in requests]
        choice = Choice([min(self._length, room) for room in rooms])
        if self._policy is not None:
            rows = [span.row for span in spans]
            is_timed = not any(span.is_new for span in plan.spans)
            choice = self._policy.choose(rows, requests, rooms, is_timed=is_timed)
            if not any(choice.lengths):
                return plan
        prices = choice.prices or [None] * len(spans)
        limits = {
            spans[index].row: self._limits(
                requests[index], rooms[index], choice.lengths[index], prices[index]
            )
            for index in asked
            if choice.lengths[index]
        }
        by_span = [limits.get(span.row) for span in plan.answering]
        tariff = choice.tariff
        if tariff is not None and len(limits) < len(spans):
            tariff = tariff.among([i for i, span in enumerate(spans) if span.row in limits])
        return replace(plan, drafts=DraftPlan(by_span, tariff, choice.is_trial))

    def learn(
        self,
        plan: RoundPlan,
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
    ) -> None:
        """Learn from a round: the accepted path of each draft, and the seconds by stage (None if
        the round was not a usual one)."""
        if self._policy is None or self._drafting.drafter is None or not plan.answering:
            return  # a round that only reads a part of a prompt asked nobody for a draft
        rows = [span.row for span in plan.answering]
        requests = [span.request for span in plan.answering]
        for request in requests:
            request.stats.num_asked += drafted.height is not None
        self._num_rows = len(rows)
        self._policy.learn(rows, requests, drafted, paths, spent, reads=bool(plan.reading))
        plain = self._policy.plain_seconds(len(rows))
        if spent is None or plain is None or any(span.is_new for span in plan.spans):
            return  # a pass that reads a prompt is compared with nothing
        for request in requests:
            request.stats.compare_to_plain(plain, sum(spent))

    def close(self) -> None:
        """Store what was learned for later engines."""
        if self._policy is not None:
            if isinstance(self._policy, LadderPolicy):
                self._policy.ladder = None  # which holds the rows of this engine
            POLICIES.put(self._policy, self._target, self._policy_key)
            self._policy = None

    def _limits(
        self, request: Request, room: int, depth: int, prices: Prices | None
    ) -> DraftLimits:
        """The most nodes and levels that a request's draft may have. The request, the given tree
        and the policy's `depth` each limit them."""
        depth = request.most_guesses(depth)
        if isinstance(self._tree, Tree):
            depth = request.most_guesses(min(self._tree.height, room))
            shape = cut(self._tree, depth)
            return DraftLimits(len(shape), depth, shape)
        if self._tree is None:
            return DraftLimits(depth, prices=prices)
        depth = min(depth, self._length)
        return DraftLimits(self._tree if depth else 0, depth, prices=prices)


def policy_key(drafter: Any, num_rows: int, is_tree: bool, coin_rule: str | None) -> Hashable:
    """The key under which a policy is stored for later engines. A drafter that hashes by identity
    is held by a weak reference, so that the policy does not keep a draft model alive."""
    drafter = getattr(drafter, "steered_as", drafter)
    hashing: Any = type(drafter).__hash__
    known_as = ref(drafter) if hashing is object.__hash__ else drafter
    return known_as, num_rows, is_tree, coin_rule
