"""Several drafters together: their trees are merged, or the one that pays best is asked first.

For every drafter it is learned, with forgetting, how many tokens of its guesses are kept, how that
compares with what it promised, and how long it takes.  A tree takes the most promising nodes of
all.  For a chain the drafters are asked in the order of tokens per second; one that has nothing to
say passes the turn on, and so does one whose guess promises less than the next would give.

Under a rule that divides by the draft's law the choice is made before anything is drawn, from
earlier rounds of the same request alone; passing on for want of a guess is all that is left then.
Times are measured, so under such a rule a seed does not repeat its text; under `match` it does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from forerun.drafters.base import Drafter, Guess, Outcome, Turn
from forerun.drafters.growing import GrowingTree
from forerun.errors import InputError, explain
from forerun.models.base import LanguageModel
from forerun.tree import ROOT

FADE = 0.95  # what an observation counts one observation later
PROBE_EVERY = 16  # turns of a row after which the one who was asked least is asked first


@dataclass
class Record:
    """How one drafter has done lately; at first everyone is taken to be good."""

    turns: float = 2.0  # with a guess
    accepted: float = 3.0
    promised: float = 3.0
    seconds: float = 0.0  # of the last asks, averaged, per turn
    num_asked: int = 0

    @property
    def expected(self) -> float:
        """Tokens accepted of a guess."""
        return self.accepted / self.turns

    def learn(self, accepted: int, promised: float) -> None:
        self.turns = FADE * self.turns + 1
        self.accepted = FADE * self.accepted + accepted
        self.promised = FADE * self.promised + promised

    def values(self, guess: Guess) -> list[float]:
        """The chance of each node to be kept: as promised, corrected; or by depth alone."""
        parents = _parents(guess)
        if guess.values is not None:
            trust = min(2.0, (self.accepted + 1) / (self.promised + 1))
            found = [min(1.0, trust * value) for value in guess.values]
        else:
            step, found = self.expected / (1 + self.expected), []
            for parent in parents:
                found.append(step * (1.0 if parent == ROOT else found[parent]))
        for node, parent in enumerate(parents):
            if parent != ROOT:
                found[node] = min(found[node], found[parent])
        return found


@dataclass
class Share:
    """What one drafter contributed to a row: its guess, and its nodes in the one put forward."""

    who: int
    guess: Guess
    nodes: dict[int, int]  # of the joint guess -> of its own


@dataclass
class Panel:
    """The drafters' own states, their records, and who guessed what in this round."""

    states: list[Any]
    together: list[Record]  # under `match`
    apart: list[list[Record]]  # of each row, under the other rules
    shares: dict[int, list[Share]] = field(default_factory=dict)
    num_turns: list[int] = field(default_factory=list)
    by_match: bool = True
    round_seconds: float = 0.0  # of a round outside the drafters, averaged
    asked_at: float | None = None

    def records(self, row: int) -> list[Record]:
        return self.together if self.by_match else self.apart[row]


class Mixed:
    """Ask several drafters and make the best of what they say."""

    def __init__(self, *drafters: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        if not drafters:
            cure = "Pass at least one, better two."
            raise InputError(explain("There is no drafter to mix.", "none", cure))
        self.drafters = drafters
        self.clock = clock
        self.num_successors: int = max(getattr(each, "num_successors", 0) for each in drafters)

    @property
    def name(self) -> str:
        return "+".join(drafter.name for drafter in self.drafters)

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Panel:
        states = [each.start(target, num_rows, capacity, rows) for each in self.drafters]
        apart = [self._records() for _ in range(num_rows)]
        return Panel(states, self._records(), apart, num_turns=[0] * num_rows)

    def propose(self, state: Panel, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        state.by_match = shared_noise
        state.shares = {turn.row: [] for turn in turns}
        trees = [turn for turn in turns if shared_noise and not turn.is_chain]
        chains = [turn for turn in turns if not shared_noise or turn.is_chain]
        found = self._merged(state, trees) | self._picked(state, chains)
        state.asked_at = self.clock()
        return [found.get(turn.row, Guess()) for turn in turns]

    def observe(self, state: Panel, outcomes: Sequence[Outcome]) -> None:
        if state.asked_at is not None:
            spent = self.clock() - state.asked_at
            state.round_seconds = FADE * state.round_seconds + (1 - FADE) * spent
        for who, drafter in enumerate(self.drafters):
            own = [self._own(state, who, outcome) for outcome in outcomes]
            drafter.observe(state.states[who], own)
        state.shares = {}

    def release(self, state: Panel, row: int) -> None:
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            drafter.release(inner, row)
        state.apart[row] = self._records()
        state.num_turns[row] = 0
        state.shares.pop(row, None)

    def _records(self) -> list[Record]:
        return [Record() for _ in self.drafters]

    def _ask(self, state: Panel, who: int, turns: Sequence[Turn]) -> list[Guess]:
        begin = self.clock()
        found = self.drafters[who].propose(state.states[who], turns, shared_noise=state.by_match)
        spent = (self.clock() - begin) / len(turns)
        for turn in turns:
            record = state.records(turn.row)[who]
            first = record.num_asked == 0
            record.seconds = spent if first else FADE * record.seconds + (1 - FADE) * spent
            record.num_asked += 1
        return found

    def _merged(self, state: Panel, turns: Sequence[Turn]) -> dict[int, Guess]:
        """The most promising nodes of everybody's trees, for each row."""
        if not turns:
            return {}
        everyone = range(len(self.drafters))
        asked = [self._ask(state, who, turns) for who in everyone]
        found = {}
        for index, turn in enumerate(turns):
            guesses = [asked[who][index] for who in everyone]
            found[turn.row], maps = merge(guesses, state.records(turn.row), turn.budget)
            state.shares[turn.row] = [
                Share(who, guess, nodes)
                for who, (guess, nodes) in enumerate(zip(guesses, maps, strict=True))
            ]
        return found

    def _picked(self, state: Panel, turns: Sequence[Turn]) -> dict[int, Guess]:
        """One drafter's guess for each row, the others not being asked if it can be helped."""
        best: dict[int, tuple[float, Share]] = {}
        waiting = {turn.row: (turn, self._order(state, turn.row)) for turn in turns}
        while waiting:
            groups = defaultdict(list)
            for turn, order in waiting.values():
                groups[order.pop(0)].append(turn)
            for who, group in groups.items():
                for turn, guess in zip(group, self._ask(state, who, group), strict=True):
                    row, order = turn.row, waiting[turn.row][1]
                    records = state.records(row)
                    rate = self._rate(state, records[who], sum(records[who].values(guess)))
                    if guess.tokens and rate > best.get(row, (0.0, None))[0]:
                        nodes = {node: node for node in range(len(guess.tokens))}
                        best[row] = rate, Share(who, guess, nodes)
                    rates = [self._rate(state, records[i], records[i].expected) for i in order]
                    settled = bool(guess.tokens) and (
                        not state.by_match or rate >= max(rates or [0])
                    )
                    if settled or not order:
                        del waiting[row]
        state.shares |= {row: [share] for row, (_, share) in best.items()}
        return {row: share.guess for row, (_, share) in best.items()}

    def _order(self, state: Panel, row: int) -> list[int]:
        """Whom to ask, best first; now and then the one who was asked least."""
        records = state.records(row)
        order = sorted(
            range(len(records)),
            key=lambda who: -self._rate(state, records[who], records[who].expected),
        )
        state.num_turns[row] += 1
        if state.num_turns[row] % PROBE_EVERY == 0:
            rare = min(order, key=lambda who: records[who].num_asked)
            order.remove(rare)
            order.insert(0, rare)
        return order

    def _rate(self, state: Panel, record: Record, accepted: float) -> float:
        """Tokens per second of a round with so many accepted."""
        return (1 + accepted) / (1e-9 + state.round_seconds + record.seconds)

    def _own(self, state: Panel, who: int, outcome: Outcome) -> Outcome:
        """What became of one drafter's guess: the part of the accepted path that was its own."""
        share = next((s for s in state.shares.get(outcome.row, ()) if s.who == who), None)
        path: list[int] = []
        if share is not None and share.guess.tokens:
            known = takewhile(share.nodes.__contains__, outcome.path)
            path = [share.nodes[node] for node in known]
            promised = share.guess.values or [float(len(path))]
            state.records(outcome.row)[who].learn(len(path), sum(promised))
        return replace(outcome, num_accepted=len(path), path=path)


def merge(
    guesses: Sequence[Guess], records: Sequence[Record], budget: int
) -> tuple[Guess, list[dict[int, int]]]:
    """The best `budget` nodes of several trees, and where each tree's nodes are in the result."""
    tree = GrowingTree()
    placed: list[dict[int, int]] = [{ROOT: ROOT} for _ in guesses]  # own -> joint
    nodes = [
        (-value, node, who)
        for who, guess in enumerate(guesses)
        for node, value in enumerate(records[who].values(guess))
    ]
    for value, node, who in sorted(nodes):
        parent = placed[who].get(_parents(guesses[who])[node])
        token = guesses[who].tokens[node]
        if parent is not None and (tree.has(parent, token) or len(tree) < budget):
            placed[who][node] = tree.child(parent, token, -value)
    return tree.guess(), [
        {joint: own for own, joint in each.items() if own != ROOT} for each in placed
    ]


def _parents(guess: Guess) -> Sequence[int]:
    return range(-1, len(guess.tokens) - 1) if guess.parents is None else guess.parents
