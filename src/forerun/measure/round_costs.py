"""Times the stages of a round on this machine, in rounds that the engine really runs.

One call per batch size cycles through all draft lengths, so a slow minute affects every length
alike and the prompt is read once.  The first rounds are warm-up and do not count.  The engine
waits for the device after each stage: without that the clock would time kernel launches only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from forerun.drafters.base import Drafter
from forerun.engine.results import Generation, Seconds
from forerun.forecast.costs import MeasuredCosts
from forerun.generation.generate import generate
from forerun.measure.records import Interval
from forerun.measure.sized_drafters import Cycling, Script
from forerun.measure.texts import Text, check_drafted

Z_95 = 1.96


def median_interval(values: Sequence[float]) -> Interval:
    """The median, and the order statistics that enclose the true one in 95% of cases.

    The number of values below the true median is binomial, so the ranks n/2 -+ 0.98 sqrt(n)
    enclose it, whatever the law of the values.  With few values the interval covers all of them.
    """
    ranked, n = sorted(values), len(values)
    half = Z_95 * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - half))
    high = min(n - 1, math.ceil(n / 2 + half) - 1)
    return Interval(median(ranked), ranked[low], ranked[max(high, low)])


WARM_UP = 2
"""Rounds at the start of a call that are not timed; the first one reads the prompt."""

TIMED_TOKENS = 96
"""The number of tokens of each timed request: about 30 rounds, so a few of each draft length."""

Table = dict[tuple[int, int], Interval]


@dataclass(frozen=True)
class TargetCosts:
    """Seconds of the target's part of a round, by batch.

    Drafts in a batch differ in length.  `padding` places the cost of such a pass between two
    bounds: 0 is a pass over the mean number of tokens (the rows are packed), 1 a pass in which
    every row is as long as the longest (the rows are padded).
    """

    passes: Table  # (batch, tokens of each request) -> one scoring pass
    verify: dict[int, Interval]  # batch -> per emitted token
    commit: dict[int, Interval]  # batch -> per round
    padding: dict[int, float] = field(default_factory=dict)  # batch -> 0 to 1; none at batch 1

    def pass_seconds(self, batch: int, tokens: float) -> float:
        """Seconds of a pass over `tokens` tokens per request; fractions are interpolated."""
        costs, tokens = _middle(self.passes), round(tokens, 9)
        below, above = math.floor(tokens), math.ceil(tokens)
        low, high = costs(batch, below), costs(batch, above)
        return low + (tokens - below) * (high - low)

    def ragged_seconds(self, batch: int, mean: float, longest: float) -> float:
        """Seconds of a pass whose requests have `mean` tokens on average and `longest` at most."""
        packed, padded = self.pass_seconds(batch, mean), self.pass_seconds(batch, longest)
        return packed + self.padding.get(batch, 0.0) * (padded - packed)

    def uncertainty(self, batch: int, tokens: int) -> float:
        """Half the 95% interval of the nearest measured pass, divided by its mean."""
        nearest = min(self.passes, key=lambda key: (key[0] != batch, abs(key[1] - tokens)))
        interval = self.passes[nearest]
        return (interval.high - interval.low) / 2 / interval.mean


@dataclass(frozen=True)
class DraftCosts:
    """Seconds of one proposal for all requests, by batch and size."""

    drafts: Table  # (batch, draft length) -> a chain
    trees: Table = field(default_factory=dict)  # (batch, nodes) -> a tree

    def draft_seconds(self, batch: int, length: int) -> float:
        """Seconds to draft chains of this length for a batch."""
        return _middle(self.drafts)(batch, length) if length else 0.0

    def tree_seconds(self, batch: int, nodes: int) -> float:
        """Seconds to draft trees of this size for a batch."""
        return self.trees[batch, nodes].mean


def time_target(
    target: Any, texts: Sequence[Text], *, batches: Sequence[int], longest: int
) -> TargetCosts:
    """Times scoring over 1 to longest + 1 tokens at each batch, then verify and commit."""
    passes, verify, commit = defaultdict(list), defaultdict(list), defaultdict(list)
    ragged: dict[int, list[float]] = {}
    for batch in batches:
        for party in _parties(texts, batch):
            known = {tuple(text.prompt): text.output for text in party}
            for timed in _rounds(target, Script(known), [0, *spread(longest)], party):
                passes[batch, timed.drafted + 1].append(timed.seconds.score)
                verify[batch].append(timed.seconds.verify / timed.emitted)
                commit[batch].append(timed.seconds.commit)
            if batch > 1:
                rounds = _rounds(target, Script(known, is_ragged=True), [longest], party)
                ragged.setdefault(batch, []).extend(timed.seconds.score for timed in rounds)
    even = TargetCosts(_summary(passes), _summary(verify), _summary(commit))
    padding = {batch: _padding(even, batch, longest, seconds) for batch, seconds in ragged.items()}
    return replace(even, padding=padding)


def _padding(costs: TargetCosts, batch: int, longest: int, seconds: list[float]) -> float:
    """`TargetCosts.padding`, from the seconds of passes in which every other request drafts."""
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
    """Times proposals of 1 to `longest` tokens, and of trees with these node counts, per batch.

    The machine may be faster or slower now than when `costs` were timed.  The target's passes in
    the same rounds show by how much, and the draft times are divided by that factor.
    """
    chains: dict[tuple[int, int], list[float]] = defaultdict(list)
    grown: dict[tuple[int, int], list[float]] = defaultdict(list)
    for batch in batches:
        for party in _parties(texts, batch):
            rounds = _rounds(target, drafter, spread(longest), party)
            pace = _pace(rounds, costs, batch)
            for timed in rounds:
                chains[batch, timed.asked].append(timed.seconds.draft / pace)
            for nodes in trees:
                rounds = _rounds(target, drafter, [longest], party, tree=nodes)
                pace = _pace(rounds, costs, batch)
                grown[batch, nodes] += [timed.seconds.draft / pace for timed in rounds]
    nonempty = {key: seconds for key, seconds in chains.items() if key[1]}
    return DraftCosts(_summary(nonempty), _summary(grown))


def _pace(rounds: Sequence[_Round], costs: TargetCosts, batch: int) -> float:
    """Seconds of the target's passes in these rounds, divided by those predicted by `costs`."""
    return median(
        timed.seconds.score / costs.ragged_seconds(batch, timed.mean + 1, timed.drafted + 1)
        for timed in rounds
    )


def spread(most: int) -> list[int]:
    """Draft lengths to time: 1 to 4, then growing steps up to `most`, `most` included."""
    return sorted(
        {length for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if length < most} | {most}
    )


@dataclass(frozen=True)
class _Round:
    """A timed round in which every request took part."""

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
    """The rounds of one call, without warm-up rounds and the cut-short last one."""
    asking = Cycling(drafter, lengths if tree is None else [tree])
    answers: list[Generation] = generate(
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
    check_drafted(answers)
    stats = [answer.stats for answer in answers]
    # The last round of a request is cut short by max_new_tokens.
    num_full = min(request.rounds for request in stats) - 1
    return [
        _Round(
            asking.asked[number],
            max(request.drafted_by_round[number] for request in stats),
            sum(request.drafted_by_round[number] for request in stats) / len(stats),
            sum(request.accepted_by_round[number] + 1 for request in stats),
            stats[0].seconds_by_round[number],
        )
        for number in range(min(WARM_UP, num_full - 1), num_full)
    ]


def _parties(texts: Sequence[Text], batch: int) -> list[list[Text]]:
    """Two or three groups of `batch` texts of about median length; texts repeat if too few."""
    ranked = sorted(texts, key=lambda text: len(text.tokens))
    num_parties = 3 if batch == 1 else 2
    num_texts = batch * num_parties
    start = max(0, (len(ranked) - num_texts) // 2)
    picked = [ranked[(start + i) % len(ranked)] for i in range(num_texts)]
    return [picked[i : i + batch] for i in range(0, num_texts, batch)]


def _summary(timings: dict[Any, list[float]]) -> dict[Any, Interval]:
    return {key: median_interval(values) for key, values in sorted(timings.items())}


def _middle(table: Table) -> Callable[[int, int], float]:
    return MeasuredCosts({key: max(interval.mean, 1e-9) for key, interval in table.items()})
