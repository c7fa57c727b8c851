"""How far to draft, decided when a round is planned: a given length, a given tree, or what pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain, wrong_type
from forerun.engine.drafting import Drafting
from forerun.engine.plan import DraftLimits, DraftPlan, RoundPlan
from forerun.engine.proposal import Drafted, cut
from forerun.engine.request import Request
from forerun.engine.steering.draft_policy import POLICIES, Choice, DraftPolicy, policy_key
from forerun.engine.steering.ladder_policy import Ladder, LadderPolicy
from forerun.engine.steering.policy import PayingPolicy
from forerun.engine.steering.why_few import why_few
from forerun.models.base import LanguageModel
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.trees.tree import Tree

TREE_HEIGHT = 5  # of trees whose draft length is left to us
SHAPES = "a shape known before, like Tree.of_branching((2, 2)) or --tree 2,2"


class DraftPlanner:
    """Adds to the plans of an engine what its drafter is asked for.

    draft_length: how many guesses may follow one another, "auto" for as many as pay.
    tree: None for a chain, a number of nodes for a tree of any shape, or the shape itself, which
    then says how many follow.
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
        self._policy: DraftPolicy | None = None
        self._policy_key: Any = None
        self._requests: dict[int, Request] = {}  # by row, where a policy steers
        self._num_rows = 1  # answered in the latest round

    def start(self, num_rows: int, ladder: Ladder | None = None) -> None:
        """Take over what an earlier engine has learned.

        ladder: the lengths that rounds come in; None: any.
        """
        if self._drafting.drafter is None or not self._is_steered:
            return
        # Costs of a batch say little about a single request's, nor does what one rule keeps
        # say what another does.
        is_tree, has_coins = self._tree is not None, self._rule.needs_draft_probs
        rule = self._rule.name if has_coins else None
        self._policy_key = policy_key(self._drafting.drafter, num_rows, is_tree, rule)
        if ladder is None:
            self._policy = POLICIES.take(self._target, self._policy_key) or PayingPolicy(
                has_coins=has_coins, is_tree=is_tree
            )
            return
        self._policy_key = self._policy_key, "ladder"
        policy = POLICIES.take(self._target, self._policy_key)
        policy = policy if isinstance(policy, LadderPolicy) else LadderPolicy(has_coins=has_coins)
        policy.ladder = ladder
        self._policy = policy

    def enter(self, row: int, request: Request) -> None:
        """A request enters a row; its notes say why it is drafted for differently, if it is."""
        if self._policy is not None:
            self._policy.enter(row, request)
            self._requests[row] = request
        note = self._drafting.note or self._note
        request.stats.notes += [] if note is None else [note]

    def leave(self, row: int) -> None:
        """The request of a row is over; its statistics say why little was drafted for it."""
        if self._policy is not None:
            stats = self._requests.pop(row).stats
            stats.why_few = why_few(stats, self._policy.price(self._num_rows))
            self._policy.leave(row)

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """The plan with what the drafter is asked for."""
        spans = [span for span in plan.answering if span.row not in self._drafting.abandoned]
        asked = [index for index, span in enumerate(spans) if span.request.is_drafted_for]
        if self._drafting.drafter is None or not asked:
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
        limits = {
            spans[index].row: self._limits(requests[index], rooms[index], choice.lengths[index])
            for index in asked
        }
        by_span = [limits.get(span.row) for span in plan.answering]
        tariff = choice.tariff
        if tariff is not None and len(asked) < len(spans):
            tariff = tariff.among(asked)
        drafts = DraftPlan(
            by_span, choice.worth, choice.goes_on, choice.prices, tariff, choice.is_trial
        )
        return replace(plan, drafts=drafts)

    def learn(
        self,
        plan: RoundPlan,
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
    ) -> None:
        """A round is over: what was accepted of each draft, and the seconds by stage, None where
        they are not those of a usual round."""
        if self._policy is None or self._drafting.drafter is None or not plan.answering:
            return  # a round that only reads a part of a prompt asked nobody for a draft
        rows = [span.row for span in plan.answering]
        requests = [span.request for span in plan.answering]
        for request in requests:
            request.stats.num_asked += drafted.height is not None
        self._num_rows = len(rows)
        timed = None if plan.reading else spent
        self._policy.learn(rows, requests, drafted, paths, timed)
        plain = self._policy.plain_seconds(len(rows))
        if timed is None or plain is None or any(span.is_new for span in plan.answering):
            return  # a pass that reads a prompt is compared with nothing
        for request in requests:
            request.stats.compare_to_plain(plain, sum(timed))

    def close(self) -> None:
        """What was learned is left for later engines."""
        if self._policy is not None:
            if isinstance(self._policy, LadderPolicy):
                self._policy.ladder = None  # which holds the rows of this engine
            POLICIES.put(self._policy, self._target, self._policy_key)
            self._policy = None

    def _limits(self, request: Request, room: int, depth: int) -> DraftLimits:
        depth = request.most_guesses(depth)
        if isinstance(self._tree, Tree):
            depth = request.most_guesses(min(self._tree.height, room))
            shape = cut(self._tree, depth)
            return DraftLimits(len(shape), depth, shape)
        if self._tree is None:
            return DraftLimits(depth)
        return DraftLimits(self._tree if depth else 0, depth)


def check_tree(tree: Any, rule: Rule, target: LanguageModel) -> None:
    """Refuse a tree that the rule or the target cannot handle."""
    if tree is None:
        return
    cure = "Use a number of nodes from 1 on, a forerun.Tree, or None for chains."
    if not isinstance(tree, int | Tree):
        like = "For one child count per level, write forerun.Tree.of_branching((2, 2))."
        raise wrong_type("tree", tree, f"{cure} {like}")
    if isinstance(tree, int) and tree < 1:
        raise InputError(explain("tree is out of range.", tree, cure))
    if not rule.judges_trees:
        given = "" if isinstance(tree, Tree) else f"; the last two with {SHAPES}"
        cure = f"Use match, siblings or traversal{given}; or leave the tree out."
        raise UnsupportedError(explain("This rule judges chains only.", rule.name, cure))
    if not rule.needs_draft_probs:
        return
    if not isinstance(tree, Tree):
        wrong = "A rule that needs the draft's distribution cannot judge a tree of any shape."
        cure = f"Pass {SHAPES}, or use the rule match."
        raise UnsupportedError(explain(wrong, f"tree={tree} with {rule.name}", cure))
    if not getattr(target, "scores_trees", False):
        wrong = f"{target.name} cannot score trees, and a sampled tree may not be cut to a chain."
        cure = "Leave the tree out, or use the rule match."
        raise UnsupportedError(explain(wrong, f"a tree with {rule.name}", cure))
