"""How far to draft, decided anew for every request in every round: as many tokens as pay.

A round with drafts of K_r tokens emits one token per request plus, for each drafted slot, the
chance s that it survives: that every slot up to it is accepted.  It costs a draft of that depth
and a pass over so many tokens.  The best lengths maximise tokens per second, and they are found by
adding slots in order of their survival: the top ones are a prefix of each request's draft, since
survival falls along it.  Drafting nothing is one of the choices.

A drafter that says how likely each guess is to be kept knows more than any average: it is given
room, and told what a guess must be worth, which is the share of a token that its cost would buy
elsewhere.  Of what it then guesses, the pass takes as much as pays at the prices of passes of these
very sizes, which rise in steps.  How often guesses that it calls so likely are really kept is
learned too.

A drafter that reads has to read a request's prompt before its first guess.  That is left alone
where the answer is too short to bring it back.

All of it is learned as it goes.  A slot counts only where it was reached, so a short draft says
nothing about the slots it left out; the recent past counts more than the distant one; and what is
not being tried is tried again from time to time, because an estimate that is never tested stays
wrong for ever.  Lengths are chosen before anything is drawn, from rounds that are over, which is
what keeps rules exact that divide by the draft's law.  Under `match` nothing could hurt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from forerun.drafters.base import Prices
from forerun.engine.costs import Costs
from forerun.engine.estimates import Acceptance, Calibration, Experience, Pace
from forerun.models.base import identity

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
MOST_DEBT = 3.0  # rounds without drafts that trying may have cost, on balance
FORGIVEN = 0.01  # of it, in every round: in the long run trying costs so much at most
NUM_COMPARED = 3  # rounds without drafts that must have been timed before anything is compared
NUM_TIMED = 3  # passes of a size after which its price is known
LONG = 32  # unread tokens: fewer are read as a matter of course
TERM = 8  # rounds for which prices are good
SMALL = 0.1  # of a round without drafts: reading that costs no more is not worth a thought


class Choice(NamedTuple):
    """What is asked of a drafter in a round."""

    lengths: list[int]  # (R,)
    worth: float = 0.0  # guesses less likely to be kept than this are not
    prices: Prices | None = None


class Terms(NamedTuple):
    """On which guesses are asked for."""

    key: tuple[float, ...]  # what they are for
    prices: Prices
    worth: float  # what the drafter must call a guess, or leave it out


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
    costs: Costs = field(default_factory=Costs)
    is_warm: bool = False
    rounds: int = 0
    last_asked: int = 0  # the round in which a draft was asked for last
    last_long: int = 0  # the one in which a draft was as long as may be
    last_drafted: int = 0  # the one that had guesses
    last_plain: int = 0  # and the one that had none
    num_plain: int = 0  # such rounds
    debt: float = 0.0  # what trying has cost more than it gave, in rounds without drafts
    is_trying: bool = False  # this round drafts although that does not seem to pay
    terms: Terms | None = None
    seeds: set[int] = field(default_factory=set)  # whose coins it has learned from, if any

    def choose(
        self,
        own: Sequence[Experience],
        room: Sequence[int],
        unread: Sequence[int] = (),
        context: float = 0.0,
    ) -> Choice:
        """Draft lengths (R,), each at most its room; own[r] is what is known of request r.

        unread: tokens of its text that the drafter has not been shown, (R,); none if left out.
        context: mean length of the texts.
        """
        self.rounds += 1
        self.debt = max(0.0, self.debt - FORGIVEN)
        self.costs.score.context, self.costs.score.num_rows = context, len(own)
        limits = [min(self.most, each) for each in room]
        if any(each > LONG for each in unread) and self.num_plain >= NUM_COMPARED:
            is_worth = self._are_worth_reading(own, room, unread)
            limits = [limit if each else 0 for limit, each in zip(limits, is_worth, strict=True)]
        choice = self._choice(own, limits)
        if any(choice.lengths):
            self.last_asked = self.rounds
        if max(choice.lengths) >= min(self.most, max(room)):
            self.last_long = self.rounds
        return choice

    def bar(self, values: Sequence[Sequence[float]], num_others: int, prices: Prices) -> float:
        """What a guess of this very round must be called: the best pass is the one that ends there.

        values: what the guesses are called, row by row; num_others: tokens in the pass besides.
        """
        called = sorted((value for row in values for value in row), reverse=True)
        known = self.costs.score.steady(NUM_TIMED)
        if self.calibration is None or not called or len(known) < NUM_TIMED:
            return 0.0
        if self.rounds - self.last_drafted > PROBE_EVERY:
            return called[0]  # one guess, lest what is believed of them is never tested
        plain = known.get(num_others, self.costs.score(num_others))
        token, slot = (price / self.costs.score.slowness for price in prices)
        bar, best, kept = float("inf"), 0.0, 0.0
        for count, value in enumerate(called, start=1):
            kept += self.calibration.chance(value)
            seconds = known.get(num_others + count, plain + count * slot) - plain
            gain = kept * token - seconds
            if gain > best:
                bar, best = value, gain
        return bar

    def plain_seconds(self, num_rows: int) -> float | None:
        """What a round without drafts takes, as far as that is known."""
        if self.num_plain < NUM_COMPARED:
            return None
        return self.costs.round(num_rows) * self.costs.score.slowness

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
        num_shown = sum(each.num_shown for each in own if each.num_shown > LONG)
        extra = self.costs.learn_reading(num_shown, max(drafted), draft_seconds)
        if reads_prompt:
            return
        self.costs.score.learn(num_rows + sum(drafted), score_seconds)
        slowness = self.costs.score.slowness
        self.costs.others.learn(other_seconds / slowness)
        if not any(drafted):
            self.last_plain = self.rounds
            self.num_plain += 1
        else:
            self.last_drafted = self.rounds
        if self.last_asked == self.rounds:
            self.costs.draft.learn(max(drafted), draft_seconds / slowness - extra)
            # What such a round usually takes: the machine may have been busy with something else.
            plain = self.costs.round(num_rows)
            took = self.costs.round(num_rows + sum(drafted), max(drafted)) / plain
            tokens = sum(each.accepted + 1 for each in ended) / num_rows
            self.pace.learn(tokens, took)
            if self.is_trying:
                self.debt = max(0.0, self.debt + took + extra / plain - tokens)
            for each, row in zip(ended, own, strict=True):
                row.pace.learn(each.accepted + 1, took)

    def _are_worth_reading(
        self, own: Sequence[Experience], room: Sequence[int], unread: Sequence[int]
    ) -> list[bool]:
        """Whether to draft for each request although the drafter has to read it first, (R,).

        What drafts may save in the rest of the request has to pay for it; where they do not seem
        to pay at all, it has to be within what trying may cost.
        """
        plain, pace, debt, found = self.costs.round(len(own)), self._pace(own), self.debt, []
        for left, new in zip(room, unread, strict=True):
            cost = self.costs.reading.middle * new / plain if new > LONG else 0.0
            if cost <= SMALL:
                is_worth = True
            elif pace is not None and pace > 1:
                is_worth = cost <= left / 2 * (1 - 1 / pace) / len(own)  # most end before they must
            else:
                is_worth = debt == 0 or debt + cost <= MOST_DEBT
                debt += cost if is_worth else 0.0
            found.append(is_worth)
        return found

    def _choice(self, own: Sequence[Experience], limits: list[int]) -> Choice:
        nothing = Choice([0] * len(limits))
        if not any(limits):
            return nothing
        if not any(self.costs.draft.sizes):
            return Choice([min(FIRST_LENGTH, limit) for limit in limits])
        # What drafts are compared with: the less is known of it, the sooner it is tried again.
        wait = min(4 * PROBE_EVERY, 4 * self.num_plain)
        if self.num_plain < NUM_COMPARED or self.rounds - self.last_plain > wait:
            return nothing
        terms = self._terms(len(limits))
        if self.calibration is None and not self.is_tree:
            return Choice(self._lengths(own, limits), prices=terms.prices)
        self.is_trying = not self._pays(own)
        if self.is_trying and self.debt >= MOST_DEBT:
            return nothing
        return Choice(limits, terms.worth, terms.prices)

    def _lengths(self, own: Sequence[Experience], limits: list[int]) -> list[int]:
        """The best ones; from time to time what is not being done: it may have come to pay."""
        if self._is_time_to_probe(len(limits)):
            return [min(PROBE_LENGTH, each) for each in limits]
        best = self._best_lengths(own, limits)
        is_stale = self.rounds - self.last_long > 4 * PROBE_EVERY
        return limits if is_stale and any(best) else best

    def _is_time_to_probe(self, num_rows: int) -> bool:
        """Whether to try once more what did not pay: the dearer that is, the less often."""
        plain = self.costs.round(num_rows)
        extra = self.costs.round(num_rows * (1 + PROBE_LENGTH), PROBE_LENGTH) - plain
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
            rate = tokens / self.costs.round(num_rows + added, max(lengths) or None)
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
        asking = self.costs.asking
        if asking is not None and asking <= (1 - CLOSE) * self.costs.round(len(own)):
            return True
        pace = self._pace(own)
        return pace is not None and pace >= CLOSE

    def _pace(self, own: Sequence[Experience]) -> float | None:
        """Tokens that each of these requests makes of rounds with drafts in the time of a round
        without, if known."""
        if self.pace.rounds < FAIR_TRIAL:
            return None
        scale = OWN_PACE_TRUST / self.pace.rounds
        tokens = sum(each.pace.tokens + scale * self.pace.tokens for each in own)
        took = sum(each.pace.took + scale * self.pace.took for each in own)
        return tokens / took

    def _terms(self, num_rows: int) -> Terms:
        """What guesses and tokens cost at present; found anew every few rounds."""
        key = num_rows, self.costs.score.context // 64, self.rounds // TERM
        if self.terms is None or self.terms.key != key:
            rate = max(1.0, self.pace.tokens / self.pace.took) if self.pace.took else 1.0
            token, slot = self.costs.round(num_rows) / (num_rows * rate), self.costs.slot(num_rows)
            worth = 0.0
            if self.calibration is not None:
                worth = self.calibration.least((slot + self.costs.step / num_rows) / token)
            slowness = self.costs.score.slowness  # drafters time themselves as the machine is
            self.terms = Terms(key, Prices(token * slowness, slot * slowness), worth)
        return self.terms


_known: WeakKeyDictionary[Any, dict[Any, Controller]] = WeakKeyDictionary()


def controller_of(
    target: Any,
    drafter: Any,
    *,
    num_rows: int = 1,
    is_tree: bool = False,
    rule: str | None = None,
) -> Controller:
    """What earlier engines of this size have learned about this pair, or one that knows nothing.

    Costs and paces of a batch say little about those of a single request; nor does what one rule
    keeps say what another does.  rule: None stands for `match`.
    """
    fresh, key = Controller(is_tree=is_tree), (drafter, num_rows, is_tree, rule)
    try:
        return _known.setdefault(identity(target), {}).setdefault(key, fresh)
    except TypeError:  # not hashable, or cannot be referred to weakly
        return fresh
