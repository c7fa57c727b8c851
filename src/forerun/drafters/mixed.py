"""Combines several drafters: merges their trees, or takes the chain with the most expected tokens.

The turn says which drafters to ask, in which order, and how to correct the chances that each states
(`Turn.prices`). The draft policy has learned this, so the guess depends only on the texts and the
turn. The fastest drafter is asked first; the next one only if the guess so far promises fewer
tokens than that drafter usually makes. Every guess says which drafter made it, and reports on all
that were asked.

Under a rule that divides by draft probabilities, choosing between drawn guesses would falsify them,
so the first drafter that guesses anything is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from forerun.base.clock import working
from forerun.base.errors import InputError, explain
from forerun.drafters.base import (
    Asked,
    Drafter,
    Guess,
    Outcome,
    Part,
    Prices,
    Turn,
    assign,
    close,
    layers_of,
)
from forerun.drafters.calibration import UNSTATED, calibrated, worth_of
from forerun.drafters.growing import GrowingTree
from forerun.drafters.registry import make_one
from forerun.models.base import LanguageModel
from forerun.trees.tree import ROOT


@dataclass
class Bid:
    """One drafter's guess for a row, and each token's chance of being kept."""

    who: int
    guess: Guess
    chances: list[float]
    nodes: dict[int, int] = field(default_factory=dict)  # number in the joint guess -> in this one


@dataclass
class Panel:
    """The state of each drafter, and which drafters contributed to each row's guess in this
    round."""

    states: list[Any]
    shares: dict[int, list[Bid]] = field(default_factory=dict)


class Mixed:
    """Draft with several drafters, given as objects or by their names on the command line, as
    separate arguments or in a list."""

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
        self._unknown = Prices((), [Part(who) for who in range(len(made))])

    @property
    def name(self) -> str:
        return "+".join(drafter.name for drafter in self.drafters)

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers that the drafters read, one drafter after another."""
        return tuple(layer for drafter in self.drafters for layer in layers_of(drafter))

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Panel:
        return Panel([each.start(target, num_rows, capacity, rows) for each in self.drafters])

    def assign(self, state: Panel, row: int, owner: str) -> None:
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            assign(drafter, inner, row, owner)

    def enter(self, state: Panel, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            drafter.enter(inner, row, tokens, num_prompt)

    def propose(self, state: Panel, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        prices = {turn.row: self._prices(turn) for turn in turns}
        bids: dict[int, list[Bid]] = {turn.row: [] for turn in turns}
        asked: dict[int, list[Asked]] = {turn.row: [] for turn in turns}
        for place in range(len(self.drafters)):
            parts = {row: own.parts[place] for row, own in prices.items()}
            group = [
                turn
                for turn in turns
                if _is_wanted(turn, parts[turn.row], bids[turn.row], prices[turn.row], shared_noise)
            ]
            if not group:
                continue
            who = parts[group[0].row].number
            guesses, seconds = self._ask(state, who, group, parts, shared_noise=shared_noise)
            for turn, guess in zip(group, guesses, strict=True):
                chances = _chances(guess, parts[turn.row].shift)
                worth = _worth(chances, prices[turn.row])
                asked[turn.row].append(Asked(who, seconds, _height(guess), worth))
                if guess.tokens:
                    bids[turn.row].append(Bid(who, guess, chances))
        state.shares = {}
        joined = [
            self._joined(state, turn, bids[turn.row], prices[turn.row], shared_noise)
            for turn in turns
        ]
        pairs = zip(turns, joined, strict=True)
        return [replace(guess, asked=asked[turn.row]) for turn, guess in pairs]

    def observe(self, state: Panel, outcomes: Sequence[Outcome]) -> None:
        for who, drafter in enumerate(self.drafters):
            own = [self._outcome_for(state, who, outcome) for outcome in outcomes]
            drafter.observe(state.states[who], own)
        state.shares = {}

    def release(self, state: Panel, row: int) -> None:
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            drafter.release(inner, row)
        state.shares.pop(row, None)

    def close(self, state: Panel) -> None:
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            close(drafter, inner)

    def _prices(self, turn: Turn) -> Prices:
        """The prices in a turn if they cover all drafters, else default ones."""
        known = turn.prices
        is_known = known is not None and len(known.parts) == len(self.drafters)
        return known if known is not None and is_known else self._unknown

    def _ask(
        self,
        state: Panel,
        who: int,
        turns: Sequence[Turn],
        parts: dict[int, Part],
        *,
        shared_noise: bool,
    ) -> tuple[list[Guess], float]:
        """Ask one drafter about some rows. Returns its guesses and the seconds they took."""
        told = [
            replace(turn, worth=parts[turn.row].worth, goes_on=parts[turn.row].goes_on)
            for turn in turns
        ]
        begin = self.clock()
        guesses = self.drafters[who].propose(state.states[who], told, shared_noise=shared_noise)
        return guesses, self.clock() - begin

    def _joined(
        self, state: Panel, turn: Turn, bids: Sequence[Bid], prices: Prices, shared_noise: bool
    ) -> Guess:
        """Combine all guesses for a row into one, recording which drafter contributed each node."""
        if not bids:
            return Guess()
        if shared_noise and not turn.is_chain:
            state.shares[turn.row] = [*bids]
            return merge(bids, turn.budget)
        best = max(bids, key=lambda bid: _worth(bid.chances, prices)) if shared_noise else bids[0]
        best.nodes = {node: node for node in range(len(best.guess.tokens))}
        state.shares[turn.row] = [best]
        values = best.chances if shared_noise else best.guess.values
        return replace(best.guess, values=values, parts=[best.who] * len(best.nodes))

    def _outcome_for(self, state: Panel, who: int, outcome: Outcome) -> Outcome:
        """The outcome as one drafter sees it: the part of the accepted path that it had guessed."""
        share = next((bid for bid in state.shares.get(outcome.row, ()) if bid.who == who), None)
        path: list[int] = []
        if share is not None:
            path = [share.nodes[node] for node in takewhile(share.nodes.__contains__, outcome.path)]
        states = self._states_of(who, outcome.states)
        return replace(outcome, num_accepted=len(path), path=path, states=states)

    def _states_of(self, who: int, states: Any) -> Any:
        """The columns of the hidden states (N, F) that one drafter reads; None if it reads none."""
        counts = [len(layers_of(drafter)) for drafter in self.drafters]
        first, end = sum(counts[:who]), sum(counts[: who + 1])
        if states is None or first == end:
            return None
        if end - first == sum(counts):
            return states
        width = states.shape[1] // sum(counts)
        return states[:, first * width : end * width]


def _is_wanted(
    turn: Turn, part: Part, bids: Sequence[Bid], prices: Prices, shared_noise: bool
) -> bool:
    """Whether to ask a drafter too, given the guesses that others have made."""
    if not bids or (shared_noise and not turn.is_chain):
        return part.enough > 0
    return shared_noise and max(_worth(bid.chances, prices) for bid in bids) < part.enough


def _worth(chances: Sequence[float], prices: Prices) -> float:
    return worth_of(chances, prices.scoring or [0.0] * len(chances))


def _chances(guess: Guess, shift: float) -> list[float]:
    """Each token's chance of being kept, which is at most that of its parent."""
    parents = range(ROOT, len(guess.tokens) - 1) if guess.parents is None else guess.parents
    chances: list[float] = []
    for node, parent in enumerate(parents):
        before = 1.0 if parent == ROOT else chances[parent]
        if guess.values is None:
            chances.append(UNSTATED * before)
        else:
            chances.append(min(before, calibrated(guess.values[node], shift)))
    return chances


def _height(guess: Guess) -> int:
    """The number of tokens on the longest path of a guess."""
    if guess.parents is None:
        return len(guess.tokens)
    heights = [0] * (len(guess.parents) + 1)  # the last one is the text's, which is parent -1
    for node, parent in enumerate(guess.parents):
        heights[node] = heights[parent] + 1
    return max(heights)


def merge(bids: Sequence[Bid], budget: int) -> Guess:
    """Merge several trees into their best `budget` nodes, and record in each bid where its nodes
    went."""
    tree, makers = GrowingTree(), []
    placed: list[dict[int, int]] = [{ROOT: ROOT} for _ in bids]  # in its tree -> in the result
    nodes = [
        (-chance, node, index)
        for index, bid in enumerate(bids)
        for node, chance in enumerate(bid.chances)
    ]
    for chance, node, index in sorted(nodes):
        guess = bids[index].guess
        before = node - 1 if guess.parents is None else guess.parents[node]
        parent, token = placed[index].get(before), guess.tokens[node]
        if parent is not None and (tree.has(parent, token) or len(tree) < budget):
            makers += [] if tree.has(parent, token) else [bids[index].who]
            placed[index][node] = tree.child(parent, token, -chance)
    for bid, numbers in zip(bids, placed, strict=True):
        bid.nodes = {joint: node for node, joint in numbers.items() if node != ROOT}
    return replace(tree.guess(), parts=makers)


def _made(drafter: Drafter | str) -> Drafter:
    """The drafter itself; one given by name is made."""
    if not isinstance(drafter, str):
        return drafter
    return make_one(drafter)
