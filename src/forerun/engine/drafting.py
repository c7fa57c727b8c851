"""The drafter as the engine sees it: asked for what is useful, checked, and never trusted.

A drafter that raises costs its requests the rest of their drafts and nothing else: what it knew
is thrown away, and the next requests start with a fresh state.  One that keeps raising is done
without for good.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.drafters.base import Drafter, Guess, Outcome, Turn, close
from forerun.engine.policy import POLICIES, Choice, DraftPolicy, PayingPolicy, policy_key
from forerun.engine.proposal import NOTHING, Proposal, cut, fits
from forerun.engine.request import Request
from forerun.errors import ForerunError, InputError, UnsupportedError, explain, warn
from forerun.models.base import LanguageModel
from forerun.rows import check_rows, sum_tolerance
from forerun.rules.base import Rule
from forerun.tree import Tree
from forerun.types import DraftLength, Drawn

XP = compat.array_namespace(np.empty(0))
TREE_HEIGHT = 5  # of trees whose draft length is left to us
SHAPES = "a shape known before, like Tree.of_branching((2, 2)) or --tree 2,2"
HARMLESS = "The text is not affected."
MOST_FAILURES = 3
"""After so many a drafter is done without for good."""


LOST = object()
"""Stands for a drafter's state that has to be made afresh."""


class Drafting:
    """One drafter at work for the slots of an engine.

    draft_length: how many guesses may follow one another, 0 for none, "auto" for as many as pay.
    tree: None for a chain, a number of nodes for a tree of any shape, or the shape itself, which
    then says how many follow.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        target: LanguageModel,
        rule: Rule,
        draft_length: DraftLength,
        tree: int | Tree | None,
    ) -> None:
        check_tree(tree, rule, target)
        self.drafter = drafter if draft_length else None
        self.target = target
        self.rule = rule
        self.draft_length = TREE_HEIGHT if draft_length == "auto" else draft_length
        self.num_successors: int = getattr(drafter, "num_successors", 0)
        self.tree = tree if tree is not None and getattr(target, "scores_trees", False) else None
        self.note: str | None = None
        if drafter is not None and self.tree is not tree:
            self.note = f"{target.name} cannot score trees, so drafts were chains"
        self._policy: DraftPolicy | None = None
        self._policy_key: Any = None
        self._is_steered = draft_length == "auto" and not isinstance(self.tree, Tree)
        self._state: Any = LOST
        self._abandoned: set[int] = set()  # rows that are done without until they are released
        self._num_failures = 0

    def start(self, num_rows: int, capacity: int, rows: Any) -> None:
        """A target that does not fit is refused here, before the first token."""
        self._start = (num_rows, capacity, rows)
        if self.drafter is None:
            return
        try:
            self._state = self.drafter.start(self.target, *self._start)
        except ForerunError:
            raise
        except Exception as error:
            name = getattr(self.drafter, "name", type(self.drafter).__name__)
            wrong = f"The drafter {name} did not start with the target {self.target.name}."
            cure = "Correct its `start`, or leave the drafter out."
            raise UnsupportedError(
                explain(wrong, f"{type(error).__name__}: {error}", cure)
            ) from error
        if self._is_steered:
            # Costs of a batch say little about a single request's, nor does what one rule keeps
            # say what another does.
            is_tree, has_coins = self.tree is not None, self.rule.needs_draft_probs
            rule = self.rule.name if has_coins else None
            self._policy_key = policy_key(self.drafter, num_rows, is_tree, rule)
            self._policy = POLICIES.take(self.target, self._policy_key) or PayingPolicy(
                has_coins=has_coins, is_tree=is_tree
            )

    def welcome(self, row: int, request: Request) -> None:
        """A request enters a slot: it learns what it will have to do without."""
        if self._policy is not None:
            self._policy.enter(row, request)
        if self.note is not None:
            request.stats.notes.append(self.note)

    def propose(self, rows: Sequence[int], requests: Sequence[Request]) -> list[Proposal]:
        """What the drafter guesses for each row, which may be nothing."""
        found = [NOTHING] * len(rows)
        asked = [index for index, row in enumerate(rows) if row not in self._abandoned]
        if self.drafter is None or not asked:
            return found
        rooms = [requests[index].limit - requests[index].num_output - 1 for index in asked]
        choice = Choice([min(self.draft_length, room) for room in rooms])
        asked_rows = [rows[index] for index in asked]
        if self._policy is not None:
            choice = self._policy.choose(asked_rows, [requests[index] for index in asked], rooms)
            if not any(choice.lengths):
                return found
        turns = [
            self._turn(rows[index], requests[index], room, depth, choice)
            for index, room, depth in zip(asked, rooms, choice.lengths, strict=True)
        ]
        guesses: Sequence[Guess] = ()
        try:
            if self._state is LOST:
                self._state = self.drafter.start(self.target, *self._start)
            shared = not self.rule.needs_draft_probs
            guesses = self.drafter.propose(self._state, turns, shared_noise=shared)
            if len(guesses) != len(turns):
                cure = f"There must be one for each of the {len(turns)} turns."
                wrong = "it gave another number of guesses."
                raise UnsupportedError(explain(wrong, len(guesses), cure))
        except Exception as error:
            self._lose_state(error, {rows[index]: requests[index] for index in asked})
            return found
        broken: dict[int, Exception] = {}
        for index, turn, guess in zip(asked, turns, guesses, strict=True):
            try:
                found[index] = self._checked(turn, guess)
            except Exception as error:
                broken[index] = error
        for index, reason in broken.items():
            self._abandon(reason, {rows[index]: requests[index]})
        if broken:
            self._count_failure()
        if self._policy is not None:
            drafts = self._policy.trim(asked_rows, choice, [found[index] for index in asked])
            for index, draft in zip(asked, drafts, strict=True):
                found[index] = draft
        return found

    def observe(self, outcomes: Sequence[Outcome], requests: Sequence[Request]) -> None:
        pairs = [
            (outcome, request)
            for outcome, request in zip(outcomes, requests, strict=True)
            if outcome.row not in self._abandoned
        ]
        if self.drafter is None or self._state is LOST or not pairs:
            return
        try:
            self.drafter.observe(self._state, [outcome for outcome, _ in pairs])
        except Exception as error:
            self._lose_state(error, {outcome.row: request for outcome, request in pairs})

    def learn(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafts: Sequence[Proposal],
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
    ) -> None:
        """A round is over: what was accepted of each draft, and the seconds by stage, None if the
        pass also read part of a prompt."""
        if self._policy is None or self.drafter is None:
            return
        self._policy.learn(rows, requests, drafts, paths, spent)
        plain = self._policy.plain_seconds(len(rows))
        if spent is None or plain is None or any(one.stats.rounds == 1 for one in requests):
            return  # a pass that reads a prompt is compared with nothing
        for request in requests:
            request.stats.compare_to_plain(plain, sum(spent))

    def release(self, row: int, others: dict[int, Request]) -> None:
        """The request of a row is over; others: those that go on."""
        if self.drafter is not None and self._state is not LOST:
            try:
                self.drafter.release(self._state, row)
            except Exception as error:
                self._lose_state(error, others)
        self._abandoned.discard(row)
        if self._policy is not None:
            self._policy.leave(row)

    def close(self) -> None:
        """The engine is done: what was learned is left for later ones."""
        if self._policy is not None:
            POLICIES.put(self._policy, self.target, self._policy_key)
            self._policy = None
        if self.drafter is not None and self._state is not LOST:
            close(self.drafter, self._state)
            self._state = LOST

    def _turn(self, row: int, request: Request, room: int, depth: int, choice: Choice) -> Turn:
        budget, shape = depth, None
        if isinstance(self.tree, Tree):
            depth = min(self.tree.height, room)
            shape = cut(self.tree, depth)
            budget = len(shape)
        elif self.tree is not None and depth:
            budget = self.tree
        return Turn(
            row,
            request.tokens,
            len(request.prompt),
            budget,
            request.sampling,
            request.seed,
            request.num_output,
            None if self.tree is None else depth,
            shape,
            choice.worth,
            choice.prices,
        )

    def _checked(self, turn: Turn, guess: Guess) -> Proposal:
        """A guess that breaks its promise would break the target far from here."""
        size = self.target.vocab_size
        tokens = [operator.index(token) for token in guess.tokens]
        if not tokens:
            return NOTHING
        if min(tokens) < 0 or max(tokens) >= size:
            outside = [token for token in tokens if not 0 <= token < size]
            wrong = "it proposed tokens that are not in the target's vocabulary."
            raise UnsupportedError(explain(wrong, outside, f"Ids must lie in 0 .. {size - 1}."))
        if len(tokens) > turn.budget:
            wrong = "it proposed more tokens than it was asked for."
            raise UnsupportedError(explain(wrong, len(tokens), f"At most {turn.budget}."))
        tree = self._checked_tree(turn, guess)
        if guess.values is not None and len(guess.values) != len(tokens):
            cure = f"There must be one for each of the {len(tokens)} tokens."
            raise UnsupportedError(explain("its values do not fit.", len(guess.values), cure))
        if self.rule.needs_draft_probs:
            self._check_law(turn, guess, tree)
        values = guess.values and [min(1.0, max(0.0, float(value))) for value in guess.values]
        return Proposal(tokens, guess.drawn, guess.probs, tree, values)

    def _checked_tree(self, turn: Turn, guess: Guess) -> Tree | None:
        """The shape of a guess, None for a chain; only what the turn allows."""
        if guess.parents is None:
            tree = None
        else:
            tree = Tree(tuple(guess.parents))
            if len(tree) != len(guess.tokens):
                cure = f"There must be one for each of the {len(guess.tokens)} tokens."
                raise UnsupportedError(explain("its parents do not fit.", len(tree), cure))
            tree = None if tree.is_chain else tree
        if tree is not None and turn.is_chain:
            wrong, cure = "it proposed a tree.", "Only a chain was asked for."
            raise UnsupportedError(explain(wrong, f"parents {list(tree.parents)}", cure))
        height = len(guess.tokens) if tree is None else tree.height
        if height > turn.height:
            wrong = "it proposed too many tokens after one another."
            raise UnsupportedError(explain(wrong, height, f"At most {turn.height}."))
        return tree

    def _check_law(self, turn: Turn, guess: Guess, tree: Tree | None) -> None:
        """What a rule that divides by the draft's law must be able to rely on."""
        count, name = len(guess.tokens), self.rule.name
        if guess.drawn is Drawn.SHARED:
            wrong = f"it used the target's noise under the rule {name!r}."
            raise UnsupportedError(explain(wrong, "shared noise", "Draw with noise of its own."))
        if guess.drawn is Drawn.PRUNED:
            wrong = f"it chose its guesses by their tokens under the rule {name!r}."
            cure = "Decide what to draft before drawing it, or use the rule match."
            raise UnsupportedError(explain(wrong, "a pruned draft", cure))
        if guess.drawn is not Drawn.SAMPLED:
            return
        shape = None if guess.probs is None else guess.probs.shape
        wanted = (count, self.target.vocab_size)
        if shape != wanted:
            wrong = "its probabilities have a wrong shape."
            raise UnsupportedError(explain(wrong, shape, f"They must be {wanted}."))
        assert guess.probs is not None
        slots = np.arange(count)
        rows, tolerance = np.full_like(slots, turn.row), sum_tolerance(guess.probs)
        check_rows(XP, guess.probs, rows, slots, "its law", tolerance)
        if not (guess.probs[slots, guess.tokens] > 0).all():
            wrong = "it proposed tokens that its own probabilities call impossible."
            raise UnsupportedError(
                explain(wrong, guess.tokens, "Pass the law they were drawn from.")
            )
        if turn.shape is not None and not fits(tree or Tree.chain(count), turn.shape):
            wrong = "its tree is not the one it was asked for."
            received = "a chain" if tree is None else f"parents {list(tree.parents)}"
            cure = f"A node has the children it has in {list(turn.shape.parents)}, or none."
            raise UnsupportedError(explain(wrong, received, cure))

    def _lose_state(self, error: Exception, requests: dict[int, Request]) -> None:
        """It raised half-way, so what it knows about any row cannot be trusted."""
        self._state = LOST
        self._abandon(error, requests)
        self._count_failure()

    def _abandon(self, error: Exception, requests: dict[int, Request]) -> None:
        """Some requests go on without drafts, and say why."""
        assert self.drafter is not None
        note = f"{self.drafter.name} failed and was done without: {type(error).__name__}: {error}"
        for row, request in requests.items():
            request.stats.notes.append(note)
            self._abandoned.add(row)
        if not self._num_failures:
            warn(f"{note.rstrip('.')}. {HARMLESS}")

    def _count_failure(self) -> None:
        assert self.drafter is not None
        self._num_failures += 1
        if self._num_failures == MOST_FAILURES:
            self.note = f"{self.drafter.name} failed {MOST_FAILURES} times and was done without"
            self.drafter = None


def check_tree(tree: int | Tree | None, rule: Rule, target: LanguageModel) -> None:
    """Refuse a tree that the rule or the target can make nothing of."""
    if tree is None:
        return
    if not isinstance(tree, Tree) and (not isinstance(tree, int) or tree < 1):
        cure = "Use a number of nodes from 1 on, a forerun.Tree, or None for chains."
        raise InputError(explain("tree is out of range.", repr(tree), cure))
    if not rule.judges_trees:
        given = "" if isinstance(tree, Tree) else f"; the last two with {SHAPES}"
        cure = f"Use match, siblings or traversal{given}; or leave the tree out."
        raise UnsupportedError(explain("This rule judges chains only.", rule.name, cure))
    if not rule.needs_draft_probs:
        return
    if not isinstance(tree, Tree):
        wrong = "A tree that grows by its tokens cannot be judged by a rule that needs their law."
        cure = f"Pass {SHAPES}, or use the rule match."
        raise UnsupportedError(explain(wrong, f"tree={tree} with {rule.name}", cure))
    if not getattr(target, "scores_trees", False):
        wrong = f"{target.name} cannot score trees, and a sampled tree may not be cut to a chain."
        cure = "Leave the tree out, or use the rule match."
        raise UnsupportedError(explain(wrong, f"a tree with {rule.name}", cure))
