"""The controller at work on the rows of an engine: what it is told, and what is done with its word.

Under `match` whatever it has learned from anyone may be used: no choice of a draft can change the
text.  A rule with coins is exact if a length is chosen before the coins that judge it are known.
They are a request's own, unless another one was given the same seed: so an estimate that has
learned from a seed is not used for a later request with that seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.drafters.base import Drafter
from forerun.engine.controller import (
    FIRST_LENGTH,
    Choice,
    Controller,
    Ended,
    leave_controller,
    take_controller,
)
from forerun.engine.estimates import Experience
from forerun.engine.proposal import Proposal, worthwhile
from forerun.engine.request import Request
from forerun.models.base import LanguageModel
from forerun.rules.base import Rule

MOST_SEEDS = 100_000
"""To be remembered; what was learned from more is forgotten together with them."""


class Steering:
    """Draft lengths of the rows of one engine, round by round."""

    def __init__(
        self, target: LanguageModel, drafter: Drafter, rule: Rule, *, num_rows: int, is_tree: bool
    ) -> None:
        self._has_coins = rule.needs_draft_probs
        self._pair = target, drafter
        self._setting: dict[str, Any] = {
            "num_rows": num_rows,
            "rule": rule.name if self._has_coins else None,
        }
        self._taken = take_controller(*self._pair, is_tree=is_tree, **self._setting)
        self._controller = self._taken  # until a seed comes that it has learned from
        self._own: dict[int, Experience] = {}
        self._repeated: set[int] = set()  # rows whose coins have been met before

    def welcome(self, row: int, request: Request) -> None:
        """A request enters a row."""
        if self._has_coins and request.sampling.temperature > 0:
            seeds = self._controller.seeds
            if not self._own and (request.seed in seeds or len(seeds) >= MOST_SEEDS):
                self._controller = Controller(is_tree=self._controller.is_tree)
            elif request.seed in seeds:
                self._repeated.add(row)
            self._controller.seeds.add(request.seed)
        self._own[row] = Experience()

    def close(self) -> None:
        """The engine is done: another one may go on from what was learned."""
        leave_controller(self._taken, *self._pair, **self._setting)

    def release(self, row: int) -> None:
        """The request of a row is over."""
        self._own.pop(row, None)
        self._repeated.discard(row)

    def choose(
        self, rows: Sequence[int], requests: Sequence[Request], rooms: Sequence[int]
    ) -> Choice:
        """What to ask for; while a row's coins are known, the same of everyone."""
        if self._repeated:
            return Choice([min(FIRST_LENGTH, room) for room in rooms])
        own = [self._own[row] for row in rows]
        lengths = [len(request.tokens) for request in requests]
        unread = [length - each.num_read for each, length in zip(own, lengths, strict=True)]
        choice = self._controller.choose(own, rooms, unread, sum(lengths) / len(lengths))
        for each, new, length in zip(own, unread, choice.lengths, strict=True):
            each.num_shown = new if length else 0
        return choice

    def worthwhile(self, choice: Choice, drafts: Sequence[Proposal]) -> list[Proposal]:
        """The drafts without what is not worth its place in the pass, where that may be judged
        by what was drawn."""
        if self._has_coins or choice.prices is None:
            return list(drafts)
        values = [draft.values for draft in drafts if draft.values is not None]
        silent = sum(len(draft.tokens) for draft in drafts if draft.values is None)
        bar = self._controller.bar(values, len(drafts) + silent, choice.prices)
        return [worthwhile(draft, max(bar, choice.worth)) for draft in drafts]

    def learn(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafts: Sequence[Proposal],
        paths: Sequence[Sequence[int]],
        spent: Sequence[float],
    ) -> None:
        """A round is over: what was accepted of each draft, and the seconds by stage."""
        if self._repeated:
            return
        own = [self._own[row] for row in rows]
        is_first = [request.stats.rounds == 1 for request in requests]
        for each, request, draft, begins in zip(own, requests, drafts, is_first, strict=True):
            if begins and not draft.tokens:
                each.num_shown = 0  # there are those who begin with the second round
            if each.num_shown:
                each.num_read = len(request.tokens)
        draft_seconds, score_seconds, *others = spent
        self._controller.learn(
            own,
            [
                Ended(len(draft.tokens), len(path), draft.values, path)
                for draft, path in zip(drafts, paths, strict=True)
            ],
            draft_seconds=draft_seconds,
            score_seconds=score_seconds,
            other_seconds=sum(others),
            reads_prompt=any(is_first),
        )
        plain = self._controller.plain_seconds(len(rows))
        for each, request in zip(own, requests, strict=True):
            each.num_shown = 0
            if plain is not None and not any(is_first):
                request.stats.compare_to_plain(plain, sum(spent))
