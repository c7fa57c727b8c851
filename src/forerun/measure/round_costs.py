"""What the parts of a round cost on this machine, timed in rounds that the engine really runs.

One call per batch size holds rounds of every draft length in turn, so a slow minute hits all of
them alike, and the prompt is read once.  The first rounds warm up and are left out.  The engine
waits for the device after each stage, so that its clock is not the clock of launches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from forerun.drafters.base import Drafter
from forerun.engine.generate import generate
from forerun.engine.results import Generation, Seconds
from forerun.forecast.costs import MeasuredCosts
from forerun.measure.records import Interval
from forerun.measure.rehearsal import Cycling, Script
from forerun.measure.texts import Text, check_drafted
from forerun.measure.timing import median_interval

WARM_UP = 2
"""Rounds at the beginning that do not count; the first one reads the prompt."""

TIMED_TOKENS = 96
"""Tokens per timed request: some 30 rounds, a handful of each length."""

Table = dict[tuple[int, int], Interval]


@dataclass(frozen=True)
class TargetCosts:
    """Seconds of the target's part of a round, by batch.

    Drafts of a batch differ in length.  `padding` says what such a pass costs: 0 as much as one
    with all its tokens evenly spread (they are packed), 1 as if all were as long as the longest.
    """

    passes: Table  # (batch, tokens of each request) -> one scoring pass
    verify: dict[int, Interval]  # batch -> per emitted token
    commit: dict[int, Interval]  # batch -> per round
    padding: dict[int, float] = field(default_factory=dict)  # batch -> 0 to 1; none at batch 1

    def pass_seconds(self, batch: int, tokens: float) -> float:
        """A pass over so many tokens of each request, on average."""
        costs, tokens = _middle(self.passes), round(tokens, 9)
        below, above = math.floor(tokens), math.ceil(tokens)
        low, high = costs(batch, below), costs(batch, above)
        return low + (tokens - below) * (high - low)

    def ragged_seconds(self, batch: int, mean: float, longest: float) -> float:
        """A pass whose requests have so many tokens on average and at most."""
        packed, padded = self.pass_seconds(batch, mean), self.pass_seconds(batch, longest)
        return packed + self.padding.get(batch, 0.0) * (padded - packed)

    def uncertainty(self, batch: int, tokens: int) -> float:
        """Half of the interval of the nearest measured pass, as a share of it."""
        nearest = min(self.passes, key=lambda key: (key[0] != batch, abs(key[1] - tokens)))
        found = self.passes[nearest]
        return (found.high - found.low) / 2 / found.mean


@dataclass(frozen=True)
class DraftCosts:
    """Seconds of one proposal for all requests, by batch and size."""

    drafts: Table  # (batch, draft length) -> a chain
    trees: Table = field(default_factory=dict)  # (batch, nodes) -> a tree

    def draft_seconds(self, batch: int, length: int) -> float:
        return _middle(self.drafts)(batch, length) if length else 0.0

    def tree_seconds(self, batch: int, nodes: int) -> float:
        return self.trees[batch, nodes].mean


def time_target(
    target: Any, texts: Sequence[Text], *, batches: Sequence[int], longest: int
) -> TargetCosts:
    """Passes over 1 to longest + 1 tokens at each batch, and what follows a pass."""
    passes, verify, commit = defaultdict(list), defaultdict(list), defaultdict(list)
    ragged: dict[int, list[float]] = {}
    for batch in batches:
        for some in _parties(texts, batch):
            known = {tuple(text.prompt): text.output for text in some}
            for each in _rounds(target, Script(known), [0, *spread(longest)], some):
                passes[batch, each.drafted + 1].append(each.seconds.score)
                verify[batch].append(each.seconds.verify / each.emitted)
                commit[batch].append(each.seconds.commit)
            if batch > 1:
                found = _rounds(target, Script(known, is_ragged=True), [longest], some)
                ragged.setdefault(batch, []).extend(each.seconds.score for each in found)
    even = TargetCosts(_summary(passes), _summary(verify), _summary(commit))
    padding = {batch: _padding(even, batch, longest, own) for batch, own in ragged.items()}
    return replace(even, padding=padding)


def _padding(costs: TargetCosts, batch: int, longest: int, seconds: list[float]) -> float:
    """Where passes in which every other request drafts lie between packed and padded ones."""
    share = (batch + 1) // 2 / batch
    packed = costs.pass_seconds(batch, 1 + share * longest)
    padded = costs.pass_seconds(batch, 1 + longest)
    if padded <= packed:
        return 0.0
    return min(1.0, max(0.0, (median(seconds) - packed) / (padded - packed)))


def time_drafter(
    target: Any,
    drafter: Drafter,
    texts: Sequence[Text],
    costs: TargetCosts,
    *,
    batches: Sequence[int],
    longest: int,
    trees: Sequence[int] = (),
) -> DraftCosts:
    """Proposals of 1 to `longest` tokens, and of trees with so many nodes, at each batch.

    The target's passes in the same rounds say how fast the machine is just now, compared with
    when they were timed: a draft is priced in their terms.
    """
    chains: dict[tuple[int, int], list[float]] = defaultdict(list)
    grown: dict[tuple[int, int], list[float]] = defaultdict(list)
    for batch in batches:
        for some in _parties(texts, batch):
            rounds = _rounds(target, drafter, spread(longest), some)
            pace = _pace(rounds, costs, batch)
            for each in rounds:
                chains[batch, each.asked].append(each.seconds.draft / pace)
            for nodes in trees:
                rounds = _rounds(target, drafter, [longest], some, tree=nodes)
                pace = _pace(rounds, costs, batch)
                grown[batch, nodes] += [each.seconds.draft / pace for each in rounds]
    timed = {key: seconds for key, seconds in chains.items() if key[1]}
    return DraftCosts(_summary(timed), _summary(grown))


def _pace(rounds: Sequence[_Round], costs: TargetCosts, batch: int) -> float:
    """Seconds of the target's passes now, over seconds of such passes when they were timed."""
    return median(
        each.seconds.score / costs.ragged_seconds(batch, each.mean + 1, each.drafted + 1)
        for each in rounds
    )


def spread(most: int) -> list[int]:
    """Draft lengths to time: the first ones all, then ever wider steps; the last one too."""
    return sorted(
        {length for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if length < most} | {most}
    )


@dataclass(frozen=True)
class _Round:
    """A round that every request took part in."""

    asked: int  # the draft length that was asked for
    drafted: int  # the longest draft
    mean: float  # tokens drafted per request
    emitted: int  # tokens of all requests
    seconds: Seconds


def _rounds(
    target: Any,
    drafter: Drafter,
    lengths: Sequence[int],
    texts: Sequence[Text],
    tree: int | None = None,
) -> list[_Round]:
    """The rounds of one call, without those that warm up and those near the end."""
    asking = Cycling(drafter, lengths if tree is None else [tree])
    found: list[Generation] = generate(
        target,
        [text.prompt for text in texts],
        drafter=asking,
        draft_length=max(lengths),
        tree=tree,
        sampling=[text.sampling for text in texts],
        max_new_tokens=TIMED_TOKENS,
        ignore_eos=True,
        batch_size=len(texts),
    )
    check_drafted(found)
    stats = [each.stats for each in found]
    num_full = min(each.rounds for each in stats) - 1  # the last one of a request is cut short
    return [
        _Round(
            asking.asked[number],
            max(each.drafted_by_round[number] for each in stats),
            sum(each.drafted_by_round[number] for each in stats) / len(stats),
            sum(each.accepted_by_round[number] + 1 for each in stats),
            stats[0].seconds_by_round[number],
        )
        for number in range(min(WARM_UP, num_full - 1), num_full)
    ]


def _parties(texts: Sequence[Text], batch: int) -> list[list[Text]]:
    """A few groups of `batch` texts of about median length; texts are used again if they must."""
    ranked = sorted(texts, key=lambda text: len(text.tokens))
    num_parties = 3 if batch == 1 else 2
    wanted = batch * num_parties
    start = max(0, (len(ranked) - wanted) // 2)
    picked = [ranked[(start + i) % len(ranked)] for i in range(wanted)]
    return [picked[i : i + batch] for i in range(0, wanted, batch)]


def _summary(timings: dict[Any, list[float]]) -> dict[Any, Interval]:
    return {key: median_interval(values) for key, values in sorted(timings.items())}


def _middle(table: Table) -> Callable[[int, int], float]:
    return MeasuredCosts({key: max(each.mean, 1e-9) for key, each in table.items()})
