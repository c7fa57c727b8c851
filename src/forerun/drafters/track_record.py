"""The recent record of one of several drafters: chances stated, tokens accepted, seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from forerun.drafters.base import Guess, Prices
from forerun.drafters.calibration import calibrated, corrected
from forerun.trees.tree import ROOT

FADE = 0.95  # what an observation counts one observation later
FADE_LATELY, FADE_EVER = 0.98, 0.999  # what an ask does, for the near and the far past
FIRST_GAIN, FIRST_TRUST = 0.1, 64.0  # tokens saved per ask, before anything was seen: so many asks
TRUST = 32.0  # asks that all of them count like for the latest
MOST_LOST = 0.08  # tokens an ask; a drafter that costs more than it saves by this is hardly asked
NUM_TIMINGS = 9  # the latest, of which the median counts: the first one may have compiled
NUM_READ = 2  # timings of reading before they are relied on, the quickest of them
LONG = 32  # unread tokens; fewer are read without a check that reading pays
ALLOWANCE = 0.005  # tokens that reading may lose per turn in which it does not seem to pay


@dataclass
class Usual:
    """The median of the latest timings; 0 before the first."""

    timings: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMINGS))
    seconds: float = 0.0

    def learn(self, seconds: float) -> None:
        self.timings.append(seconds)
        self.seconds = sorted(self.timings)[len(self.timings) // 2]


@dataclass
class Gain:
    """Mean tokens saved per ask, less its cost in tokens: of late, drawn towards that of all asks.

    Both begin with a positive prior, which is what a drafter may lose before it is hardly asked any
    more.  Requests have none of their own: what one of them keeps says less of its next guess than
    the chance that is stated with it.  But the next one may be another matter, and is judged by all
    asks at first.
    """

    tokens: float = 0.0
    asks: float = 0.0
    tokens_ever: float = FIRST_GAIN * FIRST_TRUST
    asks_ever: float = FIRST_TRUST

    @property
    def mean(self) -> float:
        usual = self.tokens_ever / self.asks_ever
        return (self.tokens + TRUST * usual) / (self.asks + TRUST)

    def learn(self, tokens: float) -> None:
        self.tokens, self.asks = FADE_LATELY * self.tokens + tokens, FADE_LATELY * self.asks + 1
        self.tokens_ever = FADE_EVER * self.tokens_ever + tokens
        self.asks_ever = FADE_EVER * self.asks_ever + 1

    def start_afresh(self) -> None:
        self.tokens, self.asks = 0.0, 0.0


@dataclass
class Worth:
    """Mean tokens that a guess promises, less its slots: of late, and much before the first."""

    tokens: float = 2.0
    asks: float = 2.0

    @property
    def mean(self) -> float:
        return self.tokens / self.asks

    def learn(self, tokens: float) -> None:
        self.tokens, self.asks = FADE * self.tokens + max(0.0, tokens), FADE * self.asks + 1


@dataclass
class Reading:
    """What it costs a drafter to read a text that has grown while it was not asked."""

    timings: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMINGS))  # of one token
    credit: float = 0.0  # tokens that reading may lose

    def pays(self, num_unread: int, room: int, gain: float, token: float) -> bool:
        """Whether asking saves more in the rest of an answer, half of its room on average, than
        reading costs; if not, now and then all the same, to learn whether it still is so.

        gain: tokens saved by one ask.  token: seconds that a token is worth.
        """
        if len(self.timings) < NUM_READ:
            return True
        cost = min(self.timings) * num_unread / token
        if cost <= room / 2 * gain:
            return True
        self.credit += ALLOWANCE
        if self.credit < cost:
            return False
        self.credit = 0.0
        return True


@dataclass
class Record:
    """What is known of one drafter; the prior assumes that its guesses are good."""

    turns: float = 2.0  # with a guess
    accepted: float = 3.0
    shift: float = 0.0  # of the log-odds of stated chances
    num_asked: int = 0
    gain: Gain = field(default_factory=Gain)
    worth: Worth = field(default_factory=Worth)
    turn: Usual = field(default_factory=Usual)  # seconds of one
    reading: Reading = field(default_factory=Reading)

    @property
    def expected(self) -> float:
        """Accepted tokens per guess."""
        return self.accepted / self.turns

    def learn(self, guess: Guess, scored: Sequence[int], path: Sequence[int]) -> None:
        """What became of a guess: which of its nodes were scored, and which were kept."""
        self.turns = FADE * self.turns + 1
        self.accepted = FADE * self.accepted + len(path)
        if guess.values is not None:
            for node in scored:
                self.shift = corrected(self.shift, guess.values[node], node in path)

    def values(self, guess: Guess) -> list[float]:
        """The chance of each node to be kept: the stated value, corrected, or one by depth."""
        if guess.values is not None:
            chances = [calibrated(value, self.shift) for value in guess.values]
        else:
            step, chances = self.expected / (1 + self.expected), []
            for parent in parents_of(guess):
                chances.append(step * (1.0 if parent == ROOT else chances[parent]))
        for node, parent in enumerate(parents_of(guess) if len(chances) > 1 else ()):
            if parent != ROOT:
                chances[node] = min(chances[node], chances[parent])
        return chances


def worth_of(chances: Sequence[float], prices: Prices | None) -> float:
    """Tokens that a chain promises, less those that could be made while its slots are scored; of
    its best beginning."""
    promised = [*accumulate(chances)]
    if prices is None or not promised:
        return sum(promised[-1:])
    return max(
        tokens - prices.scoring(count) / prices.token
        for count, tokens in enumerate(promised, start=1)
    )


def gained(expected: float, drafted: int, seconds: float, prices: Prices) -> float:
    """Tokens saved by one ask, by the chances of its guesses where they are stated, less those that
    plain decoding would have made in the time.  Chances tell sooner than luck what to expect of the
    next ask, and a record corrects them."""
    return expected - (prices.scoring(drafted) + seconds) / (prices.plain or prices.token)


def parents_of(guess: Guess) -> list[int]:
    return list(range(-1, len(guess.tokens) - 1)) if guess.parents is None else guess.parents
