"""How far to draft, decided before every round: which drafters to ask, and for how many guesses.

A round with a draft adds one token per request, plus the guesses that are kept. Its price is the
time of the drafter and of a longer pass. Both times, and how often guesses are kept, are learned
from past rounds. A drafter is asked if that is expected to make more tokens per second. If not, it
is still asked now and then, in trials that show whether this has changed. The expected loss of
trials is paid from one budget, so no drafter is ever switched off for good.

The policy reads no clock: the engine passes the seconds of each stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from forerun.drafters.base import Asked, Part, Prices
from forerun.drafters.calibration import UNSTATED, calibrated, correction, worth_of
from forerun.engine.proposal import Drafted, Proposal
from forerun.engine.request import Request
from forerun.engine.steering.ledger import BUDGET, ENOUGH, Ledger, Own, size_of
from forerun.engine.steering.measurements import NUM_TIMED, Seconds
from forerun.engine.steering.paying_guesses import Tariff, chances_of, going_on, lowest_paying
from forerun.engine.steering.why_few import Price

LONGEST = 8  # tokens in the longest draft that is considered
FIRST_LENGTH = 3  # tokens in a draft before anything is known, and for a seed that was met before
FIRST_GAIN = 0.1  # tokens that an ask is expected to gain before anything was seen, greedy
NEAR = 0.8  # share of its slot that a guess pays for, to be wanted
MOST_SEEDS = 100_000  # seeds to remember; then everything learned is forgotten with them


class Choice(NamedTuple):
    """The drafts to ask for in a round, and the prices that decide which guesses are scored."""

    lengths: list[int]  # (R,)
    prices: Sequence[Prices | None] = ()  # (R,), or none: nothing is known yet
    tariff: Tariff | None = None  # None: all guesses are scored
    is_trial: bool = False  # it does not seem to pay, and is drafted to learn from it


class PayingPolicy:
    """Chooses the drafts that make the most tokens per second.

    A rule with coins (random acceptance decisions) is exact only if a length is chosen before its
    coins are known, and requests with the same seed get the same coins. So what was learned from a
    seed is not used for that seed again: if the request is alone, a new policy serves it; beside
    others, all drafts have a fixed length while it runs.
    """

    def __init__(self, *, has_coins: bool = False) -> None:
        self._ledgers: defaultdict[bool, Ledger] = defaultdict(Ledger)  # by whether any is sampled
        self._has_coins = has_coins
        self._requests: dict[int, defaultdict[int, Own]] = {}  # by row, by drafter
        self._seeds: dict[int, int] = {}  # by row, under a rule with coins
        self._learned_from: set[int] = set()  # seeds whose coins
        self._repeated: set[int] = set()  # rows whose coins were met before, or are met twice now
        self._scoring: Sequence[float] = ()  # tokens that scoring costs, by guesses, of this round
        self.is_sampled = False  # of the requests at hand

    @property
    def ledger(self) -> Ledger:
        return self._ledgers[self.is_sampled]

    def enter(self, row: int, request: Request) -> None:
        """Record that a request enters a row."""
        if self._has_coins and request.sampling.temperature > 0:
            if len(self._learned_from) >= MOST_SEEDS:
                self._ledgers.clear()
                self._learned_from = set(self._seeds.values())
            is_known = request.seed in self._learned_from
            if is_known and not self._requests:
                self._ledgers.clear()
                self._learned_from = set()
            elif is_known:  # its twins too: when one of them leaves depends on the same coins
                self._repeated |= {row, *(r for r, s in self._seeds.items() if s == request.seed)}
            self._learned_from.add(request.seed)
            self._seeds[row] = request.seed
        self._requests[row] = defaultdict(Own)

    def leave(self, row: int) -> None:
        """Record that the request of a row has ended."""
        self._requests.pop(row, None)
        self._seeds.pop(row, None)
        self._repeated.discard(row)

    def choose(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        rooms: Sequence[int],
        *,
        is_timed: bool = True,
    ) -> Choice:
        """Choose what to ask of the drafter, from what past rounds have shown.

        rooms: the most tokens that each row can still take, (R,).
        is_timed: whether the round's time can be compared with others; False if it reads part of a
        prompt. Only timed rounds can be trials: others teach nothing, and while prompts keep
        coming, trials would never end.
        """
        pairs = zip(requests, rooms, strict=True)
        most = [request.most_guesses(min(LONGEST, room)) for request, room in pairs]
        if self._repeated:
            return Choice([min(FIRST_LENGTH, limit) for limit in most])
        self.is_sampled = any(request.sampling.temperature > 0 for request in requests)
        self.ledger.rounds += 1
        self.ledger.pay_back()
        if not any(most):
            return Choice([0] * len(rows))
        return self._choice(rows, requests, rooms, most, is_timed)

    def learn(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
        *,
        reads: bool = False,
    ) -> None:
        """Learn from a round: its drafts, the accepted path of each, and its seconds by stage
        (None if they are not typical).

        reads: the pass also read part of a prompt, so its seconds cannot be compared with others.
        """
        if not self._repeated:
            for row, draft, path in zip(rows, drafted.proposals, paths, strict=True):
                self._learn_row(row, draft, path)
            self._learn_round(rows, requests, drafted, paths, spent, reads)

    def plain_seconds(self, num_rows: int) -> float | None:
        """The seconds of a round without drafts; None if too few were timed."""
        is_known = self.ledger.num_plain >= NUM_TIMED
        return self.ledger.plain_seconds(num_rows) if is_known else None

    def price(self, num_rows: int) -> Price | None:
        """The cost and yield of guesses in rounds of this many requests; None if too few were
        timed."""
        (seconds, base, step), plain = self._timed(num_rows), self.plain_seconds(num_rows)
        sizes = [size for size in seconds.logs if size > base]
        if plain is None or not sizes:
            return None
        size = min(sizes, key=lambda size: abs(size - base - 3 * step))
        return Price(size - base, seconds.curve(size) / plain, self.ledger.speed)

    def _timed(self, num_rows: int) -> tuple[Seconds, int, int]:
        """The timings used as prices, the size of a round without guesses, and by how much one more
        guess for each request raises that size."""
        return self.ledger.passes, num_rows, num_rows

    def _choice(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        rooms: Sequence[int],
        most: Sequence[int],
        is_timed: bool,
    ) -> Choice:
        ledger, num_rows, passes = self.ledger, len(rows), self.ledger.passes.curve
        if not ledger.drafters:
            return Choice([min(FIRST_LENGTH * is_timed, limit) for limit in most])
        is_resting = ledger.is_run_due if is_timed else not ledger.pays
        if is_resting or ledger.num_plain < NUM_TIMED:
            return Choice([0] * num_rows)
        plain, base = ledger.plain_seconds(num_rows), passes(num_rows)
        token = plain / num_rows / max(1.0, ledger.drafted.within(1.0, ENOUGH))
        scoring = [(passes(num_rows + count) - base) / token for count in range(1, LONGEST + 1)]
        may_lose = is_timed and ledger.is_trying
        is_silent = ledger.num_silent % ENOUGH == ENOUGH - 1
        is_lifted = may_lose and (is_silent or ledger.num_scored < NUM_TIMED)
        order, prices, is_trial, risk = self._order(), [], is_lifted, ledger.debt
        goes_on = {
            who: tuple(
                calibrated(min(0.99, least), -ledger.drafters[who].shift)
                for least in going_on(scoring, ledger.drafters[who].level / token)
            )
            for who in order
        }
        for row, request, room, limit in zip(rows, requests, rooms, most, strict=True):
            parts = []
            for who in order:
                gain, shift = self._gain(row, who, num_rows, plain), ledger.drafters[who].shift
                loss = self._reading_loss(row, who, request, gain * room / num_rows, plain)
                is_losing = gain <= 0 or loss > 0
                is_affordable = may_lose and risk + loss <= BUDGET
                is_asked = limit > 0 and (is_affordable or not is_losing)
                is_trial |= is_asked and is_losing
                risk += loss * is_asked
                parts.append(
                    Part(
                        who,
                        shift,
                        0.0 if is_lifted else calibrated(min(0.99, NEAR * scoring[0]), -shift),
                        goes_on[who],
                        -inf if not is_asked else inf if is_losing else gain,
                    )
                )
            prices.append(Prices(tuple(scoring), tuple(parts)))
        survivals = [self._survivals(*pair) for pair in zip(rows, most, strict=True)]
        lengths, shift = list(most), ledger.drafters[order[0]].shift
        if not ledger.is_stated:
            least = FIRST_LENGTH if is_lifted else 1
            asking = ledger.drafters[order[0]].asking.curve
            bar = lowest_paying(survivals, num_rows, token, passes, asking)
            lengths = [
                max(min(limit, least), sum(chance >= bar for chance in row))
                for limit, row in zip(most, survivals, strict=True)
            ]
        lengths = [
            length * any(part.enough > 0 for part in price.parts)
            for length, price in zip(lengths, prices, strict=True)
        ]
        self._scoring, tries = scoring, 0.0 if is_lifted else NEAR if may_lose else inf
        tariff = None if self._has_coins else Tariff(token, passes, shift, survivals, tries)
        return Choice(lengths, prices, tariff, is_trial)

    def _order(self) -> list[int]:
        """The order in which drafters are asked: the fastest first. Under a rule with coins the
        first guess has to be taken, so the drafter with the best guesses comes first."""
        drafters = self.ledger.drafters
        if self._has_coins:
            return sorted(drafters, key=lambda who: -drafters[who].worth.within(0.0, 1.0))
        return sorted(drafters, key=lambda who: drafters[who].asking.curve(2))

    def _gain(self, row: int, who: int, num_rows: int, plain: float) -> float:
        """The expected tokens from asking a drafter for a row, less the tokens that the same time
        would make without it. Expensive drafters need a more certain gain."""
        ledger, own = self.ledger, self._requests[row][who]
        earned = ledger.drafters[who]
        size = own.size.within(earned.size.within(2.0, 1.0), ENOUGH)
        cost = earned.cost(num_rows * size, 0, plain)
        if who == ledger.dearest:  # it leaves less of the cache
            cost += ledger.passes.curve(num_rows) / plain - 1
        hope = 0.0 if self.is_sampled else FIRST_GAIN
        num_hoped = min(2 * ENOUGH, 2 * BUDGET / max(cost, BUDGET / ENOUGH))
        return own.worth.within(earned.worth.within(hope + cost, num_hoped), ENOUGH) - cost

    def _reading_loss(
        self, row: int, who: int, request: Request, most_saved: float, plain: float
    ) -> float:
        """The cost, in plain rounds, of letting the drafter read the text, less what it may save in
        the rest of the answer. Half of the possible answer is assumed to be left.

        most_saved: plain rounds saved if the answer uses all of its room.
        """
        num_unread = len(request.tokens) - self._requests[row][who].num_read
        if num_unread <= ENOUGH:
            return 0.0
        earned = self.ledger.drafters[who]
        cost = earned.cost(1, num_unread, plain) - earned.cost(1, 0, plain)
        return max(0.0, cost - max(0.0, most_saved) / 2)

    def _learn_round(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
        reads: bool,
    ) -> None:
        """Learn how long a round took, and compare that with the tokens that it made."""
        ledger, num_rows = self.ledger, len(rows)
        ledger.last_run += spent is None or reads  # which brings no timing of a pass nearer
        if spent is None:
            return
        is_first = any(request.stats.rounds == 1 for request in requests)
        asks = self._asks(rows, drafted, spent[0])
        texts = {row: len(request.tokens) for row, request in zip(rows, requests, strict=True)}
        num_unread = self._learn_asking(texts, asks, is_first)
        if is_first or reads:
            return  # a pass that reads a prompt says nothing about rounds to come
        num_drafted = sum(len(draft.tokens) for draft in drafted.proposals)
        ledger.num_unasked = 0 if asks else ledger.num_unasked + 1
        ledger.learn_pass(num_rows, num_drafted, sum(spent[1:]))
        plain, took = ledger.plain_seconds(num_rows), 0.0
        if not asks:
            ledger.end_run(num_rows, plain)
            return
        ledger.num_silent = 0 if num_drafted else ledger.num_silent + 1
        ledger.dearest = max(asks, key=lambda who: ledger.drafters[who].asking.curve(2))
        for who, own in asks.items():
            earned = ledger.drafters[who]
            for row, ask in own.items():
                for known in (earned, self._requests[row][who]):
                    known.size.learn(ask.height + 1)
                    known.worth.learn(ask.worth)
            took += earned.cost(size_of(own), num_unread[who], plain)
        took += ledger.passes.curve(num_rows + num_drafted) / plain
        expected = 1 + sum(map(sum, self._chances(rows, drafted.proposals))) / num_rows
        ledger.learn_drafted(expected, took, drafted.is_trial)

    def _asks(
        self, rows: Sequence[int], drafted: Drafted, seconds: float
    ) -> dict[int, dict[int, Asked]]:
        """The calls of drafters in a round, by drafter and row. A drafter that combines others
        reports their calls; any other drafter counts as one call for all rows."""
        found: defaultdict[int, dict[int, Asked]] = defaultdict(dict)
        if drafted.height is None:
            return found
        chances = self._chances(rows, drafted.proposals)
        for index, row in enumerate(rows):
            asked = drafted.asked[index] if drafted.asked else ()
            if asked == ():
                worth = worth_of(chances[index], self._scoring)
                asked = [Asked(0, seconds, drafted.height, worth)]
            for ask in asked or ():
                found[ask.part][row] = ask
        return found

    def _learn_asking(
        self,
        texts: dict[int, int],  # tokens, by row
        asks: dict[int, dict[int, Asked]],
        is_first: bool,
    ) -> dict[int, int]:
        """Learn the seconds of asking and of reading. Returns how many tokens each drafter had to
        read."""
        num_unread = dict.fromkeys(asks, 0)
        for who, own in asks.items():
            earned, size = self.ledger.drafters[who], size_of(own)
            for row in own:
                known = self._requests[row][who]
                unread = texts[row] - known.num_read
                num_unread[who] += unread * (unread > ENOUGH)
                if size > len(own) or not is_first:  # some read nothing in the first round
                    known.num_read = texts[row]
            seconds = max(ask.seconds for ask in own.values())
            if num_unread[who] and earned.asking.counts:
                extra = max(0.0, seconds - earned.asking.curve(size))
                earned.reading.learn(1, extra / num_unread[who])
            elif not is_first:
                earned.asking.learn(size, seconds)
        return num_unread

    def _learn_row(self, row: int, draft: Proposal, path: Sequence[int]) -> None:
        """Learn from the part of one request's draft that was kept."""
        if draft.values is None or self._has_coins:
            reached = min(draft.height, len(path) + 1)
            for rate in (self.ledger.rate, self._requests[row][0].rate):
                rate.learn(len(path), reached)
            return
        self.ledger.is_stated = True
        (chances,) = self._chances([row], [draft])
        parts = draft.parts or [0] * len(chances)
        for node, (who, chance) in enumerate(zip(parts, chances, strict=True)):
            earned = self.ledger.drafters[who]
            earned.shift += correction(chance, node in path, earned.num_verified)
            earned.num_verified += 1

    def _chances(self, rows: Sequence[int], drafts: Sequence[Proposal]) -> list[Sequence[float]]:
        """Each guess's chance of being kept, by row. Values that a drafter states are ignored under
        a rule with coins."""
        shift, found = self.ledger.drafters[0].shift, []
        for row, draft in zip(rows, drafts, strict=True):
            stated = replace(draft, values=None) if self._has_coins else draft
            found.append(chances_of(stated, shift, self._survivals(row, draft.height)))
        return found

    def _survivals(self, row: int, length: int) -> list[float]:
        """For each slot of a chain, the chance that it and all slots before it are accepted."""
        usual = self.ledger.rate.within(UNSTATED, 1.0)
        rate = self._requests[row][0].rate.within(usual, ENOUGH)
        return [rate**depth for depth in range(1, length + 1)]
