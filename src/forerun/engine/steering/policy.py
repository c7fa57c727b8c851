"""How far to draft, decided before every round: as many tokens as pay, which may be none.

A round with a draft emits one token per request and, for each drafted slot, the chance that all
slots up to it are accepted.  It costs the draft and a longer pass.  `PayingPolicy` learns what both
cost on this machine and how often guesses are kept, and asks for the lengths that make the most
tokens per second.  Of the guesses that come, it leaves out those that buy fewer tokens than their
slots in the pass cost.  Drafting that does not pay is switched off.  It is tried again with
another request where it usually pays, and else when what it lost has been made up for.

The policy reads no clock: the engine passes the seconds of each stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from forerun.engine.proposal import Drafted, Proposal
from forerun.engine.request import Request
from forerun.engine.steering.draft_policy import Choice
from forerun.engine.steering.measurements import LONGEST, NUM_TIMED, Experience, Knowledge
from forerun.engine.steering.paying_guesses import Tariff, lowest_paying
from forerun.engine.steering.why_few import Price

FIRST_LENGTH = 3  # tokens in a draft before anything is known, and for a seed that was met before
PROBE_LENGTH = 2  # tokens in a draft that tries whether drafting has come to pay
FIRST_RATE = 0.6  # acceptance that is assumed before anything was seen
OWN_TRUST = 16  # slots of its own after which a request's acceptance counts half
LONGEST_WAIT = 256  # rounds after which a round without drafts is timed again
FIRST_WAIT, NUM_DOUBLED = 32, 4  # after which a run of such is timed, then twice as many, ...
BREAK_EVEN = 1.01  # of plain decoding's speed, at which drafting stays on; the hundredth stands for
# choosing and learning, which are not timed
FREE = 0.004  # of a plain round's time; a drafter that takes no longer to ask is always asked
MOST_DEBT = 3.0  # plain rounds that trials may lose before drafting is switched off
MOST_UNCERTAIN = 1.5  # plain rounds that one draft is booked to lose while its price is uncertain
MOST_LOST = 24.0  # plain rounds that drafts may lose in spite of what the drafter states
ALLOWANCE = 0.005  # plain rounds that drafts may lose per round, without an end
NEAR = 0.8  # share of its slot that a guess pays for, to be scored to learn from it
FOLLOWS = 0.75  # chance that a guess is kept if the one before it is
SILENT = 32  # rounds without a guess, after which the bar for guesses is lifted once
LONG = 32  # unread tokens; a drafter reads fewer without a check that reading pays
MOST_SEEDS = 100_000  # seeds to remember; then everything learned is forgotten with them


class PayingPolicy:
    """Asks for the lengths that make the most tokens per second.

    A rule with coins is exact if a length is chosen before the coins that judge it are known.
    Another request with the same seed has met the same coins.  So what was learned from a seed is
    not used for it again: alone, the request begins with a policy that knows nothing; beside
    others, all drafts have a fixed length while it is there.
    """

    def __init__(self, *, has_coins: bool = False, is_tree: bool = False) -> None:
        self.known = Knowledge()
        self._has_coins, self._is_tree = has_coins, is_tree
        self._requests: dict[int, Experience] = {}  # by row
        self._seeds: dict[int, int] = {}  # by row, under a rule with coins
        self._repeated: set[int] = set()  # rows whose coins were met before, or are met twice now
        self._is_long_due = False  # a draft of full length is to be tried

    def enter(self, row: int, request: Request) -> None:
        if self._has_coins and request.sampling.temperature > 0:
            if len(self.known.seeds) >= MOST_SEEDS:
                self.known = Knowledge(seeds=set(self._seeds.values()))
            is_known = request.seed in self.known.seeds
            if is_known and not self._requests:
                self.known = Knowledge()
            elif is_known:  # its twins too: when one of them leaves depends on the same coins
                self._repeated |= {row, *(r for r, s in self._seeds.items() if s == request.seed)}
            self.known.seeds.add(request.seed)
            self._seeds[row] = request.seed
        self._requests[row] = Experience()
        if self.known.is_resting and self.known.usual_speed >= BREAK_EVEN:
            self.known.start_afresh()  # another request may be another matter

    def leave(self, row: int) -> None:
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
        if self._repeated:
            return Choice([min(FIRST_LENGTH, limit) for limit in _most(requests, rooms)])
        self.known.rounds += 1
        self.known.debt = max(0.0, self.known.debt - ALLOWANCE)
        self.known.lost = max(0.0, self.known.lost - ALLOWANCE)
        if self._is_off(len(rows), is_timed):
            return Choice([0] * len(rows))
        most = _most(requests, rooms)
        known = [self._requests[row] for row in rows]
        for experience, request in zip(known, requests, strict=True):
            experience.num_shown = len(request.tokens) - experience.num_read
        choice = self._choice(known, self._limits(known, rooms, most), is_timed)
        for experience, length in zip(known, choice.lengths, strict=True):
            experience.num_shown *= length > 0
        return choice

    def learn(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
    ) -> None:
        known, drafts, depth = self.known, drafted.proposals, drafted.height
        if self._repeated:
            return
        num_rows, num_drafted = len(rows), sum(len(draft.tokens) for draft in drafts)
        expected = self._expected(drafts)
        num_read = 0
        if depth is not None:
            num_read = sum(map(self._learn_row, rows, requests, drafts, paths))
        if spent is None:
            known.last_plain += 1  # a round that cannot be timed brings no timing nearer
            known.last_undisturbed += 1
            return
        if num_drafted and not known.has_drafted:
            known.has_drafted = True  # the first draft compiles and allocates
            return
        draft_seconds, extra = spent[0], 0.0
        if num_read and depth is not None and known.drafting.curve.points:
            extra = max(0.0, draft_seconds - known.drafting(depth))
            known.reading.learn(1, extra / num_read)
        if any(request.stats.rounds == 1 for request in requests):
            known.last_plain += 1  # a pass that reads a prompt says nothing about rounds to come
            return
        known.learn_pass(num_rows, num_drafted, sum(spent[1:]), depth is not None)
        if not num_drafted:
            known.num_plain, known.last_plain = known.num_plain + 1, known.rounds
        if depth is None:
            return
        known.num_silent = 0 if num_drafted else known.num_silent + 1
        known.drafting.learn(depth, draft_seconds - extra)
        plain = known.plain(num_rows)
        took = (known.passes(num_rows + num_drafted) + known.drafting.usual(depth)) / plain
        tokens = sum(len(path) + 1 for path in paths) / num_rows
        if not known.is_price_certain(num_rows + num_drafted, depth):
            took = min(took, tokens + MOST_UNCERTAIN)
        known.pace.learn(tokens, took)
        known.lost = max(0.0, known.lost + took - tokens)
        expected = tokens if expected is None else expected
        for promised in (known.promised, known.promised_ever):
            promised.learn(expected, took)
        if drafted.is_trial:
            known.debt = max(0.0, known.debt + took + extra / plain - tokens)
        elif self._is_stated:
            known.debt = max(0.0, known.debt + took - expected)

    def plain_seconds(self, num_rows: int) -> float | None:
        return self.known.plain(num_rows) if self.known.num_plain >= NUM_TIMED else None

    def price(self, num_rows: int) -> Price | None:
        known, plain = self.known, self.plain_seconds(num_rows)
        sizes = [size for size in known.passes.logs if size > num_rows]
        if plain is None or not sizes:
            return None
        size = min(sizes, key=lambda size: abs(size - 4 * num_rows))
        return Price(size - num_rows, known.passes(size) / plain, self._speed())

    def _speed(self) -> float | None:
        """Of rounds with drafts against those without."""
        pace = self.known.pace
        return pace.within(0.0, 0.0) if pace.count >= NUM_TIMED else None

    def _expected(self, drafts: Sequence[Proposal]) -> float | None:
        """Tokens per row by what the drafter states, None where it states nothing.  Luck evens out
        over hundreds of rounds, and an answer may have fewer."""
        known = self.known
        if known.shift is None or self._has_coins:
            return None
        chances = [known.chance(value) for draft in drafts for value in draft.values or ()]
        return 1 + sum(chances) / len(drafts)

    def _learn_row(self, row: int, request: Request, draft: Proposal, path: Sequence[int]) -> int:
        """What one request kept of its draft; gives the tokens that the drafter had to read."""
        experience, num_drafted = self._requests[row], len(draft.tokens)
        is_stated = draft.values is not None and not self._has_coins
        if num_drafted and not is_stated and not self._is_tree:
            num_reached = min(num_drafted, len(path) + 1)
            for acceptance in (experience.acceptance, self.known.acceptance):
                for slot, ratio in enumerate(acceptance):
                    ratio.learn(slot < min(len(path), num_reached), slot < num_reached)
        if is_stated and draft.values:
            self.known.calibrate(draft.values, path)
        num_shown, experience.num_shown = experience.num_shown, 0
        if not num_shown or (request.stats.rounds == 1 and not num_drafted):
            return 0  # some drafters read nothing in the first round
        experience.num_read = len(request.tokens)
        self.known.debt, experience.owed = self.known.debt + experience.owed, 0.0
        return num_shown if num_shown > LONG else 0

    def _limits(
        self, requests: Sequence[Experience], rooms: Sequence[int], most: Sequence[int]
    ) -> list[int]:
        """The longest drafts to consider: 0 where reading the text first would cost more than
        drafts can save in the rest of the answer, which is half of the room on average."""
        known, limits = self.known, list(most)
        if all(request.num_shown <= LONG for request in requests):
            return limits
        plain, debt = self.plain_seconds(len(rooms)), known.debt
        if plain is None or known.reading.counts.get(1, 0) < NUM_TIMED:
            return limits
        pace, reading = known.speed, known.reading(1)
        for index, (request, room) in enumerate(zip(requests, rooms, strict=True)):
            cost = reading * request.num_shown / max(plain, 1e-9)
            if request.num_shown <= LONG or cost < 0.1 or not limits[index]:
                continue
            saved = room / 2 * (1 - 1 / pace) / len(rooms) if pace > 1 else 0.0
            loss = max(0.0, cost - saved)
            request.owed = loss if pace > 1 else 0.0
            if loss:  # some is allowed, or a speed just above 1 would never be learned anew
                is_affordable = debt + loss <= MOST_DEBT or (pace <= 1 and debt == 0)
                debt += loss
                limits[index] *= is_affordable
        return limits

    def _choice(self, requests: Sequence[Experience], limits: list[int], is_timed: bool) -> Choice:
        """A round that cannot be timed is no trial: it would teach nothing, and be charged to no
        budget.  Beside prompts that are being read all the time, trials would never end."""
        known, num_rows = self.known, len(limits)
        nothing = Choice([0] * num_rows)
        if not any(limits):
            return nothing
        if not known.drafting.curve.points:
            return Choice([min(FIRST_LENGTH * is_timed, limit) for limit in limits])
        wait = min(LONGEST_WAIT, 4 * known.num_plain)  # the less is known, the sooner
        if known.num_plain < NUM_TIMED or known.rounds - known.last_plain > wait:
            self._is_long_due = True
            return nothing
        wait = FIRST_WAIT * 2 ** min(NUM_DOUBLED, known.num_runs)
        is_due = known.rounds - known.last_undisturbed > wait
        if is_timed and is_due and not self._is_free(num_rows):
            return nothing
        chances: list[list[float]] = [[] for _ in limits]  # slots of trees are not counted, nor
        if not self._is_stated or known.acceptance[0].count:  # those of drafters that state chances
            chances = list(map(self._survivals, requests, limits))
        if self._is_stated:
            lengths, pays = limits, True  # or it would be off
        else:
            curves = known.passes.curve, known.drafting.curve
            bar = lowest_paying(chances, num_rows, known.prices(num_rows).token, *curves)
            pays = bar < inf
            if pays and self._is_long_due and known.debt == 0 and is_timed:
                self._is_long_due = False
                # to see passes and slots that are not in use
                return Choice(limits, is_trial=True)
            lengths = [sum(chance >= bar for chance in row) for row in chances]
            if not pays:
                lengths = [min(PROBE_LENGTH, limit) for limit in limits]
        if not pays and not self._may_lose(is_timed):
            return nothing
        is_bar_off = known.shift is None or (is_timed and known.num_silent % SILENT == SILENT - 1)
        tries = inf
        if is_timed and (not pays or known.debt == 0):
            tries = 0.0 if is_bar_off else NEAR
        prices = known.prices(num_rows)
        worth = goes_on = 0.0
        if not is_bar_off:
            token = max(prices.token, 1e-9)
            worth = known.chance(min(0.99, NEAR * prices.scoring(1) / token), -1)
            goes_on = known.chance(min(0.99, prices.slot / (FOLLOWS * token)), -1)
        tariff = None
        if not self._has_coins:
            tariff = Tariff(prices.token, known.passes.curve, known.shift or 0.0, chances, tries)
        return Choice(lengths, worth, goes_on, prices, tariff, not pays)

    @property
    def _is_stated(self) -> bool:
        """Whether the drafter says what its guesses are worth, or a tree says nothing of slots."""
        return self.known.shift is not None or self._is_tree

    def _may_lose(self, is_timed: bool) -> bool:
        """Whether a round may be a trial."""
        return is_timed and self.known.debt < MOST_DEBT

    def _is_off(self, num_rows: int, is_timed: bool) -> bool:
        """Whether nothing is drafted, as can be told without looking at the requests.  When what
        was lost has been made up for, drafting gets a fresh start."""
        known = self.known
        if not self._is_stated or known.num_plain < NUM_TIMED or self._is_free(num_rows):
            return False
        if not is_timed and (self._speed() or 0.0) < BREAK_EVEN:
            return True  # a round that cannot be timed would not teach better
        is_hopeless = known.lost >= MOST_LOST
        if known.is_resting and known.debt == 0 and not is_hopeless and is_timed:
            known.start_afresh()
        known.is_resting = known.is_resting or is_hopeless or known.speed < BREAK_EVEN
        if known.is_resting:
            known.promised_ever.forget()  # or it would rest for good
        return known.is_resting

    def _is_free(self, num_rows: int) -> bool:
        """What costs next to nothing to ask is always asked: a `Tariff` decides guess by guess."""
        known, plain = self.known, self.known.plain(num_rows)
        return 0 in known.drafting.counts and known.drafting.usual(0) <= FREE * plain

    def _survivals(self, request: Experience, length: int) -> list[float]:
        """The chance that each slot of a chain is accepted with all before it."""
        survivals, survival, rate = [], 1.0, FIRST_RATE
        for slot in range(min(length, LONGEST)):  # a slot nobody reached is like the one before
            rate = self.known.acceptance[slot].within(rate, trust=1.0)
            survival *= request.acceptance[slot].within(rate, trust=OWN_TRUST)
            survivals.append(survival)
        return survivals


def _most(requests: Sequence[Request], rooms: Sequence[int]) -> list[int]:
    """The longest draft that each request has room for and allows."""
    pairs = zip(requests, rooms, strict=True)
    return [request.most_guesses(min(LONGEST, room)) for request, room in pairs]
