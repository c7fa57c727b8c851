"""How far to draft, decided anew for every request in every round: as many tokens as pay.

A round with drafts of K_r tokens emits one token per request plus, for each drafted slot, the
chance s that it survives: that every slot up to it is accepted.  It costs a draft of that depth
and a pass over so many tokens.  The best lengths maximise tokens per second, and they are found by
adding slots in order of their survival: the top ones are a prefix of each request's draft, since
survival falls along it.  Drafting nothing is one of the choices.

A drafter that says how likely each guess is to be kept knows more than any average: it is given
room, and told what a guess must be worth, which is the share of a token that its cost would buy
elsewhere.  How often guesses that it calls so likely are really kept is learned too.

All of it is learned as it goes.  A slot counts only where it was reached, so a short draft says
nothing about the slots it left out; the recent past counts more than the distant one; and what is
not being tried is tried again from time to time, because an estimate that is never tested stays
wrong for ever.  Lengths are chosen before anything is drawn, from rounds that are over, which is
what keeps rules exact that divide by the draft's law.  Under `match` nothing could hurt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from forerun.drafters.base import Prices
from forerun.engine.estimates import (
    Acceptance,
    Calibration,
    Clock,
    Experience,
    Pace,
    Recent,
)

OWN_PACE_TRUST = 6.0  # rounds of its own after which a request's pace is judged half by them
OWN_TRUST = 16.0  # slots of its own after which a request is judged half by them
PROBE_EVERY = 64  # rounds between two tries of what is not being done, at least
PROBE_SHARE = 0.015  # of the time that tries may cost
PROBE_LENGTH = 2
FIRST_LENGTH = 3  # of the draft that is tried before anything is known
FIRST_GUESS = 0.6  # acceptance before anything was seen: enough to try
MOST = 8  # the longest draft to consider
CLOSE = 0.985  # of plain decoding's pace: what costs so little may as well go on
FAIR_TRIAL = 8  # rounds with drafts before their pace says anything
MOST_DEBT = 3.0  # rounds without drafts that trying may have cost, lately and on balance
DEBT_HALF_LIFE = 200  # rounds after which half of that is forgiven: a loss of 1% at most
NUM_COMPARED = 3  # rounds without drafts that must have been timed before anything is compared


class Choice(NamedTuple):
    """What is asked of a drafter in a round."""

    lengths: list[int]  # (R,)
    worth: float = 0.0  # guesses less likely to be kept than this are not
    prices: Prices | None = None


class Ended(NamedTuple):
    """A round that is over, as far as one request is concerned."""

    drafted: int  # guesses
    accepted: int
    values: Sequence[float] | None = None  # of the guesses, from drafters that say
    path: Sequence[int] = ()  # those that were kept


@dataclass
class Controller:
    """Chooses the draft lengths of each round, and learns from what came of them.

    One controller may outlive its engine: what it knows is about a target and a drafter, not about
    a request.
    """

    most: int = MOST
    is_tree: bool = False  # drafts are trees: they are made or not, and pruned, not shortened
    acceptance: Acceptance = field(default_factory=Acceptance)
    pace: Pace = field(default_factory=Pace)
    calibration: Calibration | None = None  # where the drafter says how likely its guesses are
    score: Clock = field(default_factory=Clock)  # by tokens in the pass
    draft: Clock = field(default_factory=Clock)  # by the longest draft that came of it
    overhead: Recent = field(default_factory=Recent)  # verifying and committing
    is_warm: bool = False
    rounds: int = 0
    last_asked: int = 0  # the round in which a draft was asked for last
    last_long: int = 0  # the one in which a draft was as long as may be
    last_plain: int = 0  # and the one in which nothing was drafted
    num_plain: int = 0  # such rounds
    debt: float = 0.0  # what trying has cost more than it gave, in rounds without drafts
    is_trying: bool = False  # this round drafts although that does not seem to pay

    def choose(self, own: Sequence[Experience], room: Sequence[int]) -> Choice:
        """Draft lengths (R,), each at most its room; own[r] is what is known of request r."""
        self.rounds += 1
        self.debt *= 0.5 ** (1 / DEBT_HALF_LIFE)
        choice = self._choice(own, [min(self.most, each) for each in room])
        if any(choice.lengths):
            self.last_asked = self.rounds
        if max(choice.lengths) >= min(self.most, max(room)):
            self.last_long = self.rounds
        return choice

    def plain_seconds(self, num_rows: int) -> float | None:
        """What a round without drafts takes, as far as that is known."""
        return self._seconds(num_rows, None) if self.num_plain >= NUM_COMPARED else None

    def learn(
        self,
        own: Sequence[Experience],
        ended: Sequence[Ended],
        *,
        draft_seconds: float,
        score_seconds: float,
        other_seconds: float,
        reads_prompt: bool,
    ) -> None:
        """A round is over: what each request drafted and kept, and what it took.

        reads_prompt: a prompt was in the pass, whose time says nothing about rounds to come.
        """
        for each, row in zip(ended, own, strict=True):
            if each.drafted and not self.is_tree:
                row.acceptance.learn(each.drafted, each.accepted)
                self.acceptance.learn(each.drafted, each.accepted)
            if each.values is not None:
                self.calibration = self.calibration or Calibration()
                self.calibration.learn(each.values, each.path)
        num_rows, drafted = len(ended), [each.drafted for each in ended]
        if any(drafted) and not self.is_warm:  # the first draft compiles and allocates
            self.is_warm = True
            return
        if reads_prompt:
            return
        self.score.learn(num_rows + sum(drafted), score_seconds)
        self.overhead.learn(other_seconds)
        if not any(drafted):
            self.last_plain = self.rounds
            self.num_plain += 1
        if self.last_asked == self.rounds:
            self.draft.learn(max(drafted), draft_seconds)
            # What such a round usually takes: the machine may have been busy with something else.
            seconds = self._seconds(num_rows + sum(drafted), max(drafted))
            tokens = sum(each.accepted + 1 for each in ended) / num_rows
            self.pace.learn(tokens, seconds)
            if self.is_trying:
                lost = seconds / self._seconds(num_rows, None) - tokens
                self.debt = max(0.0, self.debt + lost)
            for each, row in zip(ended, own, strict=True):
                row.pace.learn(each.accepted + 1, seconds)

    def _choice(self, own: Sequence[Experience], limits: list[int]) -> Choice:
        nothing = Choice([0] * len(limits))
        if not any(limits):
            return nothing
        if not any(self.draft.sizes):
            return Choice([min(FIRST_LENGTH, limit) for limit in limits])
        is_known = self.num_plain >= NUM_COMPARED
        if not is_known or self.rounds - self.last_plain > 4 * PROBE_EVERY:
            return nothing
        prices = self._prices(len(limits))
        if self.calibration is None and not self.is_tree:
            return Choice(self._lengths(own, limits), prices=prices)
        self.is_trying = not self._pays(own)
        if self.is_trying and self.debt >= MOST_DEBT:
            return nothing
        return Choice(limits, self._worth(len(limits), prices), prices)

    def _lengths(self, own: Sequence[Experience], limits: list[int]) -> list[int]:
        """The best ones; from time to time what is not being done: it may have come to pay."""
        if self._is_time_to_probe(len(limits)):
            return [min(PROBE_LENGTH, each) for each in limits]
        best = self._best_lengths(own, limits)
        is_stale = self.rounds - self.last_long > 4 * PROBE_EVERY
        return limits if is_stale and any(best) else best

    def _is_time_to_probe(self, num_rows: int) -> bool:
        """Whether to try once more what did not pay: the dearer that is, the less often."""
        plain = self._seconds(num_rows, None)
        extra = self._seconds(num_rows * (1 + PROBE_LENGTH), PROBE_LENGTH) - plain
        wait = max(PROBE_EVERY, extra / (PROBE_SHARE * plain))
        return self.rounds - self.last_asked > wait

    def _best_lengths(self, own: Sequence[Experience], limits: list[int]) -> list[int]:
        """By the averages: slots in order of their survival, as long as that pays."""
        num_rows = len(limits)
        slots = [
            (-survival, slot, row)
            for row, limit in enumerate(limits)
            for slot, survival in enumerate(self._survivals(own[row].acceptance, limit))
        ]
        lengths, best, best_rate = [0] * num_rows, [0] * num_rows, 0.0
        tokens = float(num_rows)
        for added, (minus_survival, _, row) in enumerate([(0.0, 0, -1), *sorted(slots)]):
            if row >= 0:
                lengths[row] += 1
                tokens -= minus_survival
            rate = tokens / self._seconds(num_rows + added, max(lengths) or None)
            if rate > best_rate:
                best, best_rate = list(lengths), rate
        return best

    def _survivals(self, own: Acceptance, limit: int) -> list[float]:
        """The chance that each slot of a draft is accepted with all before it."""
        found, survival, rate = [], 1.0, FIRST_GUESS
        for slot in range(limit):
            # Slots that nobody has reached yet are taken to be like the last one that was.
            rate = self.acceptance.rate(slot, rate, trust=1.0)
            survival *= own.rate(slot, rate, trust=OWN_TRUST)
            found.append(survival)
        return found

    def _pays(self, own: Sequence[Experience]) -> bool:
        """Whether rounds with drafts have made more tokens a second than rounds without would.

        Where asking costs next to nothing that is no question: the bar decides guess by guess.
        """
        plain = self._seconds(len(own), None)
        if 0 in self.draft.timings and self.draft(0) <= (1 - CLOSE) * plain:
            return True
        if self.pace.rounds < FAIR_TRIAL:
            return False
        scale = OWN_PACE_TRUST / self.pace.rounds
        tokens = sum(each.pace.tokens + scale * self.pace.tokens for each in own)
        seconds = sum(each.pace.seconds + scale * self.pace.seconds for each in own)
        return tokens / seconds >= CLOSE / plain

    def _prices(self, num_rows: int) -> Prices:
        """What a token takes at the pace that is reached, and what a guess adds to a pass."""
        plain = self.score(num_rows)
        larger = [size for size in self.score.timings if size > num_rows]
        slope = median([(self.score(size) - plain) / (size - num_rows) for size in larger or [2]])
        rate = num_rows / self._seconds(num_rows, None)
        if self.pace.seconds:
            rate = max(rate, num_rows * self.pace.tokens / self.pace.seconds)
        return Prices(1 / rate, max(0.0, slope))

    def _worth(self, num_rows: int, prices: Prices) -> float:
        """What a guess must be called by the drafter to be worth its share of a round."""
        if self.calibration is None:
            return 0.0
        begin = self.draft(0) if 0 in self.draft.timings else 0.0
        steps = [(self.draft(size) - begin) / size for size in self.draft.timings if size]
        step = max(0.0, median(steps or [0.0])) / num_rows
        return self.calibration.least((prices.slot + step) / prices.token)

    def _seconds(self, num_tokens: int, depth: int | None) -> float:
        """What a round usually takes whose longest draft is `depth`; None: nobody is asked."""
        draft = 0.0 if depth is None else self.draft(depth)
        return self.score(num_tokens) + draft + self.overhead.middle


_known: WeakKeyDictionary[Any, dict[Any, Controller]] = WeakKeyDictionary()


def controller_of(
    target: Any, drafter: Any, *, num_rows: int = 1, is_tree: bool = False
) -> Controller:
    """What earlier engines of this size have learned about this pair, or one that knows nothing.

    Costs and paces of a batch say little about those of a single request.
    """
    fresh = Controller(is_tree=is_tree)
    try:
        return _known.setdefault(target, {}).setdefault((drafter, num_rows, is_tree), fresh)
    except TypeError:  # not hashable, or cannot be referred to weakly
        return fresh
