"""Stores what a drafting network has received from its target, row by row, and makes drafts from
it.

After a round the target has processed all tokens of a text but the newest. The hidden state of
token t is paired with token t + 1, and each pair is one entry of the network; the newest token is
in the last entry. Entries are computed only when a draft is wanted, so rounds without drafts cost
nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from forerun.base.arrays import joined
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.heads.few_racers import Node, is_about_tokens
from forerun.drafters.heads.runner import Logits, Runner
from forerun.drafters.texts import Texts
from forerun.models.base import LanguageModel, identity
from forerun.rules.types import Drawn
from forerun.trees.tree import ROOT

MOST_LINES = 128  # drawn at once
MOST_GUESSES = 1 << 30  # that follow one another, where the runner has no limit


@dataclass
class Heard:
    """The entries of one row: how many were computed, and which still have to be."""

    num_entries: int = 0  # verified entries, waiting ones included
    waiting: list[tuple[Any, Sequence[int]]] = field(default_factory=list)
    """The entries that have not been computed yet, in parts: hidden states (N, F), and the token
    after each of them (N,)."""
    logits: tuple[Any, int] | None = None  # of the last entry that was run: its row of these
    numbers: dict[int, int] = field(default_factory=dict)
    """The number that the runner gave to each draft node."""
    num_nodes: int = 0  # nodes given to the runner since its last entry


class Ahead(NamedTuple):
    """A line of guesses whose computation was started before the drafter is asked for it."""

    turn: Turn  # the one before
    position: int
    line: Any
    begun: Any

    def serves(self, turn: Turn) -> bool:
        last = self.turn
        return (
            turn.row == last.row
            and turn.position == self.position
            and turn.sampling is last.sampling
            and turn.seed == last.seed
            and turn.is_chain
        )

    def guess(self, turn: Turn) -> Guess:
        """The line as a `Guess`, cut to the length and the chances that the turn allows."""
        count = min(int(self.line.counts[0]), turn.height)
        values = self.line.values[0, :count].tolist()
        while values and values[-1] < turn.worth:
            values.pop()
        return Guess(self.line.tokens[0, : len(values)].tolist(), Drawn.SHARED, values=values)


class Listening:
    """The rows of one engine, with everything that the network has received about them."""

    def __init__(self, vocab_size: int, runner: Runner, num_rows: int, capacity: int) -> None:
        self.vocab_size = vocab_size
        self.texts = Texts()
        self.runner = runner
        self.reach: int = getattr(runner, "reach", None) or MOST_GUESSES
        self._reads_last = getattr(runner, "reads_last", False)
        self._rows = runner.start(num_rows, capacity)
        self._heard = [Heard() for _ in range(num_rows)]
        self._last: tuple[Turn, Any] | None = None  # a line drawn for one row in this round
        self._ahead: Ahead | None = None  # one that is being drawn for the next

    def can_draft(self, row: int) -> bool:
        return self._heard[row].num_entries > 0

    def hear(self, outcome: Outcome) -> None:
        """Take in the tokens and hidden states of the last rounds. The row's text already contains
        these tokens."""
        row, states, heard = outcome.row, outcome.states, self._heard[outcome.row]
        before = outcome.num_processed - len(states)
        if before != heard.num_entries:  # the beginning of its text was missed
            self.release(row)
            if not self._reads_last:
                return
            heard = self._heard[row]
        following = self.texts[row].tokens[before + 1 : before + 1 + len(states)]
        if not following:
            return
        heard.num_entries = before + len(following)
        states = states[: len(following)]
        if self._reads_last:
            heard.waiting.clear()
            last = states[-1:]  # a copy, so that the others can go
            states = last.copy() if isinstance(last, np.ndarray) else last.clone()
            following = following[-1:]
        heard.waiting.append((states, following))

    def look_ahead(self) -> None:
        """Start computing the line that the next round will ask for if it resembles this one. It
        runs while the host does other work, which takes about as long."""
        if self._last is None:
            return
        (turn, ids), self._last = self._last, None
        heard, begin = self._heard[turn.row], getattr(self.runner, "begin_line", None)
        if begin is None or self._ahead is not None or not heard.waiting:
            return
        (features,), (tokens,) = self._take([turn.row])
        position = turn.position + len(tokens)
        if turn.room is not None and turn.room <= len(tokens) + 1:
            return
        begun = begin(self._rows, turn, position, features, tokens, ids)
        if begun is not None:
            logits, *under_way = begun
            self._keep([turn.row], logits)
            self._ahead = Ahead(turn, position, *under_way)

    def settle(self) -> Ahead | None:
        """Finish a line that was started ahead, before anything else is computed; returns it."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.begun.finish()
        return ahead

    def begin(self, rows: Sequence[int]) -> Logits:
        """Start drafts at the ends of the texts. Returns the logits (R, Vd) of the first
        guesses."""
        self.settle()
        behind = [row for row in rows if self._heard[row].waiting]
        if behind:
            logits = self.runner.extend(self._rows, behind, *self._take(behind))
            self._keep(behind, logits.copy())
        found = []
        for row in rows:
            heard = self._heard[row]
            heard.numbers = {ROOT: ROOT}
            assert heard.logits is not None, "a row that has no entries cannot draft"
            found.append(heard.logits[0][heard.logits[1]])
        return np.stack(found)

    def lines(self, turns: Sequence[Turn], ids: Any) -> list[Guess] | None:
        """Draw whole chains at once with the target's noise; None if the runner or the turns do not
        allow it."""
        draw = getattr(self.runner, "extend_with_lines", None)
        ahead, self._last = self.settle(), None
        if ahead is not None and len(turns) == 1 and ahead.serves(turns[0]):
            self._last = turns[0], ids
            return [ahead.guess(turns[0])]
        asked, rows = [], []
        for turn in turns:
            heard = self._heard[turn.row]
            if heard.num_entries and turn.height:
                if not heard.waiting or not turn.is_chain or is_about_tokens(turn.sampling):
                    return None
                asked.append(turn)
                rows.append(turn.row)
        if draw is None or len(asked) > MOST_LINES:
            return None
        drawn: dict[int, Guess] = {}
        if asked:
            logits, drafts = draw(self._rows, rows, *self._take(rows), asked, ids)
            self._keep(rows, logits)
            for row, (tokens, values) in zip(rows, drafts, strict=True):
                drawn[row] = Guess(tokens, Drawn.SHARED, values=values)
            self._last = (asked[0], ids) if len(asked) == 1 else None
        return [drawn.get(turn.row) or Guess() for turn in turns]

    def go_on(self, nodes: Sequence[Node]) -> Logits:
        """The logits (N, Vd) after nodes whose parents the network has already processed."""
        rows, parents, tokens = [], [], []
        for growth, node in nodes:
            heard = self._heard[growth.turn.row]
            rows.append(growth.turn.row)
            parents.append(heard.numbers[growth.parents[node]])
            tokens.append(growth.tokens[node])
            heard.numbers[node] = heard.num_nodes
            heard.num_nodes += 1
        return self.runner.step(self._rows, rows, parents, tokens)

    def release(self, row: int) -> None:
        """Forget what was computed for a row; its text stays."""
        self.settle()
        self.runner.release(self._rows, row)
        self._heard[row] = Heard()

    def _take(self, rows: Sequence[int]) -> tuple[list[Any], list[list[int]]]:
        """The entries of these rows that still have to be computed: their hidden states, (R,)
        arrays (N_r, F), and the token paired with each."""
        waiting = [self._heard[row].waiting for row in rows]
        states = [joined([part for part, _ in parts]) for parts in waiting]
        return states, [[token for _, part in parts for token in part] for parts in waiting]

    def _keep(self, rows: Sequence[int], logits: Logits) -> None:
        """Store the logits (R, Vd) of the rows' last entries, and mark all their entries as
        computed."""
        for index, row in enumerate(rows):
            heard = self._heard[row]
            heard.waiting, heard.logits, heard.num_nodes = [], (logits, index), 0


class Listener(ABC):
    """A base class for drafters whose network reads the target's hidden states."""

    def __init__(self) -> None:
        self._runners: WeakKeyDictionary[Any, Runner] = WeakKeyDictionary()

    @abstractmethod
    def fit(self, target: Any) -> Runner:
        """Make the runner of the network for this target, on its device."""

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> Listening:
        key = identity(target)
        runner = self._runners.get(key)
        if runner is None:
            runner = self._runners[key] = self.fit(target)
        return Listening(target.vocab_size, runner, num_rows, capacity)

    def enter(self, state: Listening, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.texts.enter(row, tokens, num_prompt)

    def observe(self, state: Listening, outcomes: Sequence[Outcome]) -> None:
        state.texts.observe(outcomes)
        for outcome in outcomes:
            state.hear(outcome)
        state.look_ahead()

    def release(self, state: Listening, row: int) -> None:
        state.texts.release(row)
        state.release(row)
