"""Combines several drafters: merges their trees, or takes the chain that pays best.

For every drafter `Mixed` learns how many tokens of its guesses are kept, how often those are whose
chance it states, and how long it takes.  A tree takes the most promising nodes of all drafters.
For a chain the cheapest is asked first.  The next one is asked if the guess at hand promises fewer
tokens a second than the next one usually gives, and not at all if asking it has cost more tokens
than it saved, at the prices of the engine.

Under a rule that divides by the draft's law the order is set before anything is drawn, from
earlier rounds of the same request alone, and the first guess is taken.  Times are measured, so
under such a rule a seed does not repeat its text; under `match` it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any

from forerun.base.clock import working
from forerun.base.errors import InputError, explain
from forerun.drafters.base import (
    Drafter,
    Guess,
    Outcome,
    Prices,
    Turn,
    assign,
    close,
    layers_of,
)
from forerun.drafters.growing import GrowingTree
from forerun.drafters.owners import ByOwner
from forerun.drafters.registry import make_one
from forerun.drafters.track_record import (
    LONG,
    MOST_LOST,
    Record,
    Usual,
    gained,
    parents_of,
    worth_of,
)
from forerun.models.base import LanguageModel
from forerun.models.handover import Shelf
from forerun.trees.tree import ROOT

PROBE_EVERY = 16  # turns of a row after which the one who was asked least is asked first


@dataclass
class Share:
    """What one drafter contributed to a row: its guess, and its nodes in the one put forward."""

    who: int
    guess: Guess
    nodes: dict[int, int]  # number in the joint guess -> in this one


@dataclass
class Panel:
    """The drafters' own states, their records, and who guessed what in this round."""

    target: LanguageModel
    states: list[Any]
    together: ByOwner[list[Record]]  # under `match`
    apart: list[list[Record]]  # of each row, under the other rules
    shares: dict[int, list[Share]] = field(default_factory=dict)
    asked: dict[int, dict[int, float]] = field(default_factory=dict)  # row -> who -> seconds
    prices: Prices | None = None  # of this round
    num_turns: list[int] = field(default_factory=list)
    unread: list[list[int]] = field(default_factory=list)  # tokens of each row, by who
    by_match: bool = True
    round: Usual = field(default_factory=Usual)  # seconds of one, without those of the drafters
    asked_at: float | None = None

    def records(self, row: int) -> list[Record]:
        return self.together[row] if self.by_match else self.apart[row]

    def reads(self, turn: Turn, who: int) -> bool:
        """Whether a drafter would have much to read before its guess."""
        return self.unread[turn.row][who] > LONG


class Mixed:
    """Draft with several drafters, given as objects or by their names on the command line; one by
    one, or in a list."""

    def __init__(
        self, *given: Drafter | str | Sequence[Drafter | str], clock: Callable[[], float] = working
    ) -> None:
        drafters: list[Drafter | str] = []
        for one in given:
            drafters += one if isinstance(one, list | tuple) else [one]  # type: ignore[list-item]
        if not drafters:
            cure = "Pass at least one, better two."
            raise InputError(explain("There is no drafter to mix.", "none", cure))
        made = [_made(drafter) for drafter in drafters]
        self.drafters = list(made)
        self.clock = clock
        self.num_successors: int = max(getattr(drafter, "num_successors", 0) for drafter in made)
        self.layers = tuple(layer for drafter in self.drafters for layer in layers_of(drafter))
        ends = [*accumulate(len(layers_of(drafter)) for drafter in self.drafters)]
        self._read = [*zip([0, *ends], ends, strict=False)]  # of `layers`, by each: first, end
        self._reads_all = [end - first in (0, len(self.layers)) for first, end in self._read]
        self._shelf: Shelf[dict[str, list[Record]]] = Shelf()

    @property
    def name(self) -> str:
        return "+".join(drafter.name for drafter in self.drafters)

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Panel:
        states = [drafter.start(target, num_rows, capacity, rows) for drafter in self.drafters]
        return Panel(
            target,
            states,
            ByOwner(self._records, self._shelf.take(target)),
            apart=[self._records() for _ in range(num_rows)],
            num_turns=[0] * num_rows,
            unread=[[0] * len(self.drafters) for _ in range(num_rows)],
        )

    def assign(self, state: Panel, row: int, owner: str) -> None:
        state.together.assign(row, owner)
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            assign(drafter, inner, row, owner)

    def enter(self, state: Panel, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.unread[row] = [len(tokens)] * len(self.drafters)
        for record in state.together[row]:
            record.gain.start_afresh()
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            drafter.enter(inner, row, tokens, num_prompt)

    def propose(self, state: Panel, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        state.by_match = shared_noise
        state.shares, state.asked = {}, {turn.row: {} for turn in turns}
        state.prices = turns[0].prices if turns else None
        trees = [turn for turn in turns if shared_noise and not turn.is_chain]
        chains = [turn for turn in turns if not shared_noise or turn.is_chain] if trees else turns
        guesses = self._picked(state, chains)
        if trees:
            guesses |= self._merged(state, trees)
        state.asked_at = self.clock()
        return [guesses.get(turn.row) or Guess() for turn in turns]

    def observe(self, state: Panel, outcomes: Sequence[Outcome]) -> None:
        if state.asked_at is not None:
            state.round.learn(self.clock() - state.asked_at)
            state.asked_at = None
        for outcome in outcomes:
            state.unread[outcome.row] = [n + len(outcome.tokens) for n in state.unread[outcome.row]]
        for who, drafter in enumerate(self.drafters):
            shares = [self._share_of(state, who, outcome) for outcome in outcomes]
            drafter.observe(state.states[who], shares)
        state.shares, state.asked = {}, {}

    def release(self, state: Panel, row: int) -> None:
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            drafter.release(inner, row)
        state.apart[row] = self._records()
        state.num_turns[row] = 0
        state.together.release(row)
        state.shares.pop(row, None)

    def close(self, state: Panel) -> None:
        """Leave the records of the drafters with this target to the next engine."""
        self._shelf.put(state.together.memories, state.target)
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            close(drafter, inner)

    def _records(self) -> list[Record]:
        return [Record() for _ in self.drafters]

    def _ask(self, state: Panel, who: int, turns: Sequence[Turn]) -> list[Guess]:
        begin = self.clock()
        guesses = self.drafters[who].propose(state.states[who], turns, shared_noise=state.by_match)
        seconds = (self.clock() - begin) / len(turns)
        num_unread = sum(state.unread[turn.row][who] for turn in turns if state.reads(turn, who))
        for turn in turns:
            record = state.records(turn.row)[who]
            if not num_unread or not record.turn.timings:
                record.turn.learn(seconds)
            elif state.reads(turn, who):
                extra = max(0.0, seconds - record.turn.seconds)
                record.reading.timings.append(extra * len(turns) / num_unread)
            record.num_asked += 1
            state.asked[turn.row][who] = seconds
        for turn in turns:
            state.unread[turn.row][who] = 0
        return guesses

    def _merged(self, state: Panel, turns: Sequence[Turn]) -> dict[int, Guess]:
        """The most promising nodes of all drafters' trees, for each row."""
        everyone = range(len(self.drafters))
        asked = [self._ask(state, who, turns) for who in everyone]
        merged = {}
        for index, turn in enumerate(turns):
            guesses = [asked[who][index] for who in everyone]
            merged[turn.row], maps = merge(guesses, state.records(turn.row), turn.budget)
            state.shares[turn.row] = [
                Share(who, guess, nodes)
                for who, (guess, nodes) in enumerate(zip(guesses, maps, strict=True))
            ]
        return merged

    def _picked(self, state: Panel, turns: Sequence[Turn]) -> dict[int, Guess]:
        """One drafter's guess for each row; the others are asked only if they may be better."""
        best: dict[int, tuple[float, Guess, Share]] = {}
        orders = {turn.row: (turn, self._order(state, turn)) for turn in turns}
        waiting = {row: (turn, order) for row, (turn, order) in orders.items() if order}
        while waiting:
            groups = defaultdict(list)
            for turn, order in waiting.values():
                groups[order.pop(0)].append(turn)
            for who, group in groups.items():
                for turn, guess in zip(group, self._ask(state, who, group), strict=True):
                    row, order = turn.row, waiting[turn.row][1]
                    records = state.records(row)
                    chances = records[who].values(guess)
                    worth = worth_of(chances, turn.prices)
                    records[who].worth.learn(worth)
                    if guess.tokens and (row not in best or worth > best[row][0]):
                        nodes = {node: node for node in range(len(guess.tokens))}
                        best[row] = worth, _restated(guess, chances), Share(who, guess, nodes)
                    if not order or (
                        row in best and self._is_settled(state, best[row][0], order, records)
                    ):
                        del waiting[row]
        state.shares |= {row: [share] for row, (_, _, share) in best.items()}
        return {row: guess for row, (_, guess, _) in best.items()}

    def _is_settled(
        self, state: Panel, worth: float, order: Sequence[int], records: Sequence[Record]
    ) -> bool:
        """Whether a guess at hand, worth so many tokens, makes more of them per second than asking
        another drafter usually does."""
        rates = [self._rate(state, records[who], records[who].worth.mean) for who in order]
        return not state.by_match or (1 + worth) / (1e-9 + state.round.seconds) >= max(rates)

    def _order(self, state: Panel, turn: Turn) -> list[int]:
        """The drafters to ask, in order; now and then the one asked least comes first."""
        row, records = turn.row, state.records(turn.row)
        everyone = [*range(len(self.drafters))]
        if state.by_match:
            everyone = [who for who in everyone if self._can_read(state, turn, who)]
            order = sorted(everyone, key=lambda who: records[who].turn.seconds)
            if turn.prices is not None:
                order = [who for who in order if records[who].gain.mean > -MOST_LOST]
        else:
            rates = [self._rate(state, record, record.expected) for record in records]
            order = sorted(everyone, key=lambda who: -rates[who])
        state.num_turns[row] += 1
        if state.num_turns[row] % PROBE_EVERY == 0 and everyone:
            rare = min(everyone, key=lambda who: records[who].num_asked)
            order = [rare, *(who for who in order if who != rare)]
        return order

    def _can_read(self, state: Panel, turn: Turn, who: int) -> bool:
        """Whether a drafter may be asked that would have to read the text first."""
        if turn.prices is None or turn.room is None or not state.reads(turn, who):
            return True
        record, num_unread = state.records(turn.row)[who], state.unread[turn.row][who]
        return record.reading.pays(num_unread, turn.room, record.gain.mean, turn.prices.token)

    def _rate(self, state: Panel, record: Record, accepted: float) -> float:
        """Tokens per second of a round with so many accepted."""
        return (1 + accepted) / (1e-9 + state.round.seconds + record.turn.seconds)

    def _share_of(self, state: Panel, who: int, outcome: Outcome) -> Outcome:
        """The outcome for one drafter: its own part of the accepted path."""
        row, path, drafted, expected = outcome.row, [], 0, 0.0
        share = next((s for s in state.shares.get(row, ()) if s.who == who), None)
        record = state.records(row)[who]
        if share is not None and share.guess.tokens:
            known = takewhile(share.nodes.__contains__, outcome.path)
            path, drafted = [share.nodes[node] for node in known], len(share.nodes)
            if outcome.num_scored is not None:
                drafted = min(drafted, outcome.num_scored)  # the engine may have cut it
            expected = float(len(path))
            if share.guess.values is not None:
                expected = sum(record.values(share.guess)[:drafted])
            record.learn(share.guess, [*share.nodes.values()][:drafted], path)
        seconds = state.asked.get(row, {}).get(who)
        if seconds is not None and state.prices is not None:
            seconds = min(seconds, record.turn.seconds)
            record.gain.learn(gained(expected, drafted, seconds, state.prices))
        if not outcome.path and self._reads_all[who]:
            return outcome
        return Outcome(
            row,
            len(path),
            outcome.tokens,
            path,
            outcome.successors,
            outcome.num_scored,
            self._states_of(who, outcome.states),
            outcome.num_processed,
        )

    def _states_of(self, who: int, states: Any) -> Any:
        """The columns of hidden states (N, F) that one drafter reads; None if it reads none."""
        first, end = self._read[who]
        if states is None or first == end:
            return None
        if end - first == len(self.layers):
            return states
        width = states.shape[1] // len(self.layers)
        return states[:, first * width : end * width]


def _restated(guess: Guess, chances: list[float]) -> Guess:
    """A guess with the chances that its drafter should have stated, if it stated any."""
    if guess.values is None:
        return guess
    return Guess(guess.tokens, guess.drawn, guess.probs, guess.parents, chances)


def merge(
    guesses: Sequence[Guess], records: Sequence[Record], budget: int
) -> tuple[Guess, list[dict[int, int]]]:
    """The best `budget` nodes of several trees, and where each tree's nodes are in the result."""
    tree = GrowingTree()
    placed: list[dict[int, int]] = [{ROOT: ROOT} for _ in guesses]  # in its tree -> in the result
    nodes = [
        (-value, node, who)
        for who, guess in enumerate(guesses)
        for node, value in enumerate(records[who].values(guess))
    ]
    for value, node, who in sorted(nodes):
        parent = placed[who].get(parents_of(guesses[who])[node])
        token = guesses[who].tokens[node]
        if parent is not None and (tree.has(parent, token) or len(tree) < budget):
            placed[who][node] = tree.child(parent, token, -value)
    return tree.guess(), [
        {joint: node for node, joint in numbers.items() if node != ROOT} for numbers in placed
    ]


def _made(drafter: Drafter | str) -> Drafter:
    """The drafter itself, or the one of that name."""
    return make_one(drafter) if isinstance(drafter, str) else drafter
