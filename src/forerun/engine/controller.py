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

from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

HALF_LIFE = 200  # verified slots after which an observation of all requests counts half
OWN_HALF_LIFE = 50  # and one of a single request
PACE_HALF_LIFE, OWN_PACE_HALF_LIFE = 200, 16  # rounds
OWN_PACE_TRUST = 6.0  # rounds of its own after which a request's pace is judged half by them
LIKELY = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8)  # bands of chances
TRUST_IN_DRAFTER = 4.0  # guesses after which what it says counts half
OWN_TRUST = 8.0  # slots of its own after which a request is judged half by them
PROBE_EVERY = 48  # rounds between two tries of what is not being done
PROBE_LENGTH = 2
FIRST_LENGTH = 3  # of the draft that is tried before anything is known
NUM_TIMINGS = 9  # the latest passes of one size, of which the median counts
FIRST_GUESS = 0.6  # acceptance before anything was seen: enough to try
MOST = 8  # the longest draft to consider


@dataclass
class Acceptance:
    """How often each slot of a draft was accepted where it was reached, with forgetting."""

    half_life: float = HALF_LIFE
    accepted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """One verified draft: slots up to the first refusal were reached."""
        num_reached = min(num_drafted, num_accepted + 1)
        missing = num_reached - len(self.reached)
        self.accepted += [0.0] * missing
        self.reached += [0.0] * missing
        fade = 0.5 ** (num_reached / self.half_life)
        for slot in range(len(self.reached)):
            self.accepted[slot] *= fade
            self.reached[slot] *= fade
        for slot in range(num_reached):
            self.reached[slot] += 1.0
            self.accepted[slot] += slot < num_accepted

    def rate(self, slot: int, belief: float, trust: float) -> float:
        """Acceptance of a slot, drawn towards a belief that weighs as much as `trust` slots."""
        if slot >= len(self.reached):
            return belief
        return (self.accepted[slot] + trust * belief) / (self.reached[slot] + trust)


@dataclass
class Pace:
    """Tokens and seconds of the rounds with drafts, with forgetting."""

    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    half_life: float = PACE_HALF_LIFE

    def learn(self, tokens: float, seconds: float) -> None:
        fade = 0.5 ** (1 / self.half_life)
        self.tokens = self.tokens * fade + tokens
        self.seconds = self.seconds * fade + seconds
        self.rounds = self.rounds * fade + 1


@dataclass
class Experience:
    """What one request has made of its drafts."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(OWN_HALF_LIFE))
    pace: Pace = field(default_factory=lambda: Pace(half_life=OWN_PACE_HALF_LIFE))


@dataclass
class Calibration:
    """How often guesses are kept that a drafter calls so likely to be, with forgetting."""

    kept: list[float] = field(default_factory=lambda: [0.0] * len(LIKELY))
    seen: list[float] = field(default_factory=lambda: [0.0] * len(LIKELY))

    def learn(self, values: Sequence[float], path: Sequence[int]) -> None:
        """The guesses of one draft by what they were called, and the ones that were kept."""
        fade = 0.5 ** (len(values) / HALF_LIFE)
        self.kept = [each * fade for each in self.kept]
        self.seen = [each * fade for each in self.seen]
        for node, value in enumerate(values):
            band = bisect(LIKELY, value) - 1
            self.seen[band] += 1
            self.kept[band] += node in path

    def least(self, worth: float) -> float:
        """What a guess must be called to be kept as often as `worth`.

        Drafters are modest, greedy ones above all: a law that puts half on its likeliest token
        is right more often than that.  So untested bands are believed to do better than called.
        """
        for low, kept, seen in zip(LIKELY, self.kept, self.seen, strict=True):
            if (kept + TRUST_IN_DRAFTER * low**0.5) / (seen + TRUST_IN_DRAFTER) >= worth:
                return low
        return LIKELY[-1]


@dataclass
class Clock:
    """Seconds of something by its size, from the latest few of each size."""

    timings: dict[int, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=NUM_TIMINGS))
    )

    def learn(self, size: int, seconds: float) -> None:
        self.timings[size].append(seconds)

    def __call__(self, wanted: int) -> float:
        """The median where this size was timed; else a line through its neighbours, level below
        the smallest and as steep as the last known stretch, at most in proportion, above."""
        known = sorted((size, median(own)) for size, own in self.timings.items())
        below = [pair for pair in known if pair[0] <= wanted]
        above = [pair for pair in known if pair[0] >= wanted]
        if not below:
            return known[0][1]
        (size, seconds), rest = below[-1], wanted - below[-1][0]
        if above:
            other, later = above[0]
            return seconds + (later - seconds) * rest / max(1, other - size)
        slope = seconds / size
        if len(below) > 1:
            before, sooner = below[-2]
            slope = min(slope, max(0.0, (seconds - sooner) / (size - before)))
        return seconds + slope * rest


class Choice(NamedTuple):
    """What is asked of a drafter in a round."""

    lengths: list[int]  # (R,)
    worth: float = 0.0  # guesses less likely to be kept than this are not


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
    acceptance: Acceptance = field(default_factory=Acceptance)
    pace: Pace = field(default_factory=Pace)
    calibration: Calibration | None = None  # where the drafter says how likely its guesses are
    score: Clock = field(default_factory=Clock)  # by tokens in the pass
    draft: Clock = field(default_factory=Clock)  # by the longest draft
    overhead: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMINGS))
    rounds: int = 0
    last_asked: int = 0  # the round in which a draft was asked for last
    last_plain: int = 0  # and the one in which nothing was drafted

    def choose(self, own: Sequence[Experience], room: Sequence[int]) -> Choice:
        """Draft lengths (R,), each at most its room; own[r] is what is known of request r."""
        self.rounds += 1
        choice = self._choice(own, [min(self.most, each) for each in room])
        if any(choice.lengths):
            self.last_asked = self.rounds
        return choice

    def plain_seconds(self, num_rows: int) -> float | None:
        """What a round without drafts takes, as far as that is known."""
        return self._seconds(num_rows, 0) if self.last_plain else None

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
            if each.drafted:
                row.acceptance.learn(each.drafted, each.accepted)
                self.acceptance.learn(each.drafted, each.accepted)
            if each.values is not None:
                self.calibration = self.calibration or Calibration()
                self.calibration.learn(each.values, each.path)
        if reads_prompt:
            return
        num_rows, drafted = len(ended), [each.drafted for each in ended]
        self.score.learn(num_rows + sum(drafted), score_seconds)
        self.overhead.append(other_seconds)
        if any(drafted):
            self.draft.learn(max(drafted), draft_seconds)
        else:
            self.last_plain = self.rounds
        if self.last_asked == self.rounds:
            total = draft_seconds + score_seconds + other_seconds
            self.pace.learn(sum(each.accepted + 1 for each in ended) / num_rows, total)
            for each, row in zip(ended, own, strict=True):
                row.pace.learn(each.accepted + 1, total)

    def _choice(self, own: Sequence[Experience], limits: list[int]) -> Choice:
        nothing = Choice([0] * len(limits))
        if not any(limits):
            return nothing
        if not self.draft.timings:
            return Choice([min(FIRST_LENGTH, limit) for limit in limits])
        if not self.last_plain or self.rounds - self.last_plain > 4 * PROBE_EVERY:
            return nothing
        probes = self.rounds - self.last_asked > PROBE_EVERY
        if self.calibration is None:
            lengths = [min(PROBE_LENGTH, each) for each in limits]
            return Choice(lengths if probes else self._best_lengths(own, limits))
        if probes or self._pays(own):
            return Choice(limits, self._worth(len(limits)))
        return nothing

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
            rate = tokens / self._seconds(num_rows + added, max(lengths))
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
        """Whether rounds with drafts have made more tokens a second than rounds without would."""
        if not self.pace.rounds:
            return True
        scale = OWN_PACE_TRUST / self.pace.rounds
        tokens = sum(each.pace.tokens + scale * self.pace.tokens for each in own)
        seconds = sum(each.pace.seconds + scale * self.pace.seconds for each in own)
        return tokens / seconds >= 1 / self._seconds(len(own), 0)

    def _worth(self, num_rows: int) -> float:
        """What a guess must be called by the drafter to be worth its share of a round."""
        assert self.calibration is not None
        sizes = max(size for size in self.score.timings)
        extra = max(1, sizes - num_rows)
        slope = (self.score(num_rows + extra) - self.score(num_rows)) / extra
        longest = max(self.draft.timings)
        step = self.draft(longest) / longest / num_rows
        rate = num_rows / self._seconds(num_rows, 0)
        if self.pace.seconds:
            rate = max(rate, num_rows * self.pace.tokens / self.pace.seconds)
        return self.calibration.least(rate * max(0.0, slope + step))

    def _seconds(self, num_tokens: int, depth: int) -> float:
        draft = self.draft(depth) if depth else 0.0
        return self.score(num_tokens) + draft + median(self.overhead or [0.0])


_known: WeakKeyDictionary[Any, dict[Any, Controller]] = WeakKeyDictionary()


def controller_of(target: Any, drafter: Any) -> Controller:
    """What earlier engines have learned about this pair, or a controller that knows nothing."""
    try:
        return _known.setdefault(target, {}).setdefault(drafter, Controller())
    except TypeError:  # not hashable, or cannot be referred to weakly
        return Controller()
