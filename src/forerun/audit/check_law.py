"""Tests the law: compares tokens of longer texts, which may be speculated, with the distributions
that one-token requests report at the same places.

Texts are requested under several conditions: sampling options and lengths. The law under an option
can be computed from the plain one, so one-token requests are made without options, and their
answers serve all conditions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from statistics import fmean

from forerun.audit.bins import Bins, Key
from forerun.audit.budget import SpentError
from forerun.audit.conditions import CONDITIONS, Condition, changed
from forerun.audit.endpoint import Endpoint
from forerun.audit.evidence import Evidence, Wealth, needed
from forerun.audit.features import NAMES, Spot, copied
from forerun.audit.findings import Finding
from forerun.audit.law_finding import LEVEL, Guess, Outcome, bends, follows, law_finding
from forerun.audit.mechanisms import Mechanisms, misjudged
from forerun.audit.prompts import Prompt
from forerun.audit.questions import Question, RefusedError, Token

LEAST_SLACK = 1e-3
"""The smallest change of a ratio of probabilities that is always attributed to rounding."""
MOST_SLACK = 0.05
"""The largest change that is attributed to rounding, whatever was measured; with more, no fault
could be shown."""
NUM_ASKED_AGAIN = 4
"""The number of laws that are requested twice, to measure rounding."""
FEWEST_TURNS = 2
"""The number of texts that every prompt gets before the best one is used more often."""
LONG_ENOUGH = 8
"""The fewest tokens of a text in which runs of copied tokens are looked for."""
LEAST_HEARD = 64
"""The fewest tokens whose log-probabilities are compared, even if the law is rejected sooner."""
MOST_SAMPLES = 400
"""The most one-token samples that are drawn after a rejection, to find out its cause."""
LOOSE = 1.05
"""If the upper bounds of a law's probabilities sum to more than this, too little is known of the
law to bet on it."""
LIKELY = 1e-3
"""Only tokens at least this likely are used to measure rounding."""


@dataclass
class Heard:
    """A token of a text that was requested without options, and the law at its place.

    The log-probabilities that came with the text are compared with this law later.
    """

    token: Token
    law: Bins


def _evidence(num_mechanisms: int = 1) -> Evidence:
    """New evidence for one condition."""
    return Evidence(len(NAMES), 4, num_others=2, num_mechanisms=num_mechanisms)


@dataclass
class LawCheck:
    """Tests the law until it is rejected or the budget is spent.

    left_out: the names of the conditions that are not tested, each with the reason.
    """

    endpoint: Endpoint
    prompts: Sequence[Prompt]
    seeded: bool = True  # seeds are given with every other text
    slack: float | None = None  # None: measured
    level: float = LEVEL
    conditions: Sequence[Condition] = CONDITIONS
    left_out: dict[str, str] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    guesses: list[Guess] = field(default_factory=list)
    num_skipped: int = 0
    num_texts: int = 0
    _slack: float = LEAST_SLACK
    _samples: Evidence = field(default_factory=_evidence)  # of one-token requests without options
    _mechanisms: Mechanisms = field(default_factory=Mechanisms)
    _turns: Counter[str] = field(default_factory=Counter)
    _copies: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    _places: list[tuple[Condition, Prompt, Sequence[Token]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start separate evidence for every condition, and for each interpretation of its
        options."""
        parts = {
            one.name: [_evidence() for _ in range(one.num_readings)] for one in self.conditions
        }
        self.wealth = Wealth(_evidence(len(self._mechanisms)), parts)

    def run(self) -> Finding:
        """Bet on the tokens of texts until the law is rejected or the budget is spent."""
        for condition in self.conditions:
            if condition.has_penalties and self.endpoint.dialect.route == "chat":
                self.left_out[condition.name] = "a chat's template may hold any word"
        samples: Evidence | None = None
        try:
            self._slack = self._rounding() if self.slack is None else self.slack
            for condition, prompt, tokens, is_cut in self._texts():
                self._look(condition, prompt, tokens, is_cut)
                if self._is_rejected:
                    samples = self._sampled()
                    self._hear()
                    break
        except SpentError:
            pass
        return law_finding(self._outcome(samples))

    @property
    def _is_rejected(self) -> bool:
        """Whether the e-value is large enough to reject the law."""
        return self.wealth.log_e_value >= needed(self.level)

    def _texts(self) -> Iterator[tuple[Condition, Prompt, tuple[Token, ...], bool]]:
        """Request texts under the conditions. Yields the condition, the prompt, the tokens, and
        whether the text ended early."""
        while open_ := [one for one in self.conditions if one.name not in self.left_out]:
            condition = self.wealth.next(open_)
            prompt, before = self._prompt(condition), self.endpoint.budget.spent
            try:
                yield condition, prompt, *self._text(condition, prompt)
                self.wealth.spent[condition.name, prompt.text] += (
                    self.endpoint.budget.spent - before
                )
            except RefusedError as refusal:
                if not condition.options:
                    raise
                self.left_out[condition.name] = f"refused: {refusal.reason[:60]}"

    def _text(self, condition: Condition, prompt: Prompt) -> tuple[tuple[Token, ...], bool]:
        """Request a text. Returns its tokens, and whether it ended early by a token that is not
        shown."""
        options = {**self.endpoint.plain, **condition.options}
        if self.seeded and self.num_texts // 2 % 2:
            options["seed"] = 1000 + self.num_texts
        question = Question(prompt.text, condition.length, options=options)
        choice = self.endpoint.ask(f"text/{self.num_texts}", question).choices[0]
        self.num_texts += 1
        return choice.tokens or (), choice.reason == "stop"

    def _prompt(self, condition: Condition) -> Prompt:
        """Choose the prompt of the next text: usually the one on which bets have won most.

        Longer texts without options use the prompts in turn, but two in three use the one whose
        copies are likeliest, because faults with copied drafts show where drafts are accepted. The
        choice depends only on earlier texts, so the test stays valid.
        """
        if condition.has_penalties:  # so that what the prompt says is known to the word
            return Prompt("", self.prompts[0].pieces)
        if condition.length < LONG_ENOUGH:
            return self.wealth.next_prompt(condition, self.prompts)
        number = self._turns[condition.name]
        self._turns[condition.name] += 1
        turn, rest = divmod(number, 3)
        copies = {one.text: self._copies[condition.name, one.text] for one in self.prompts}
        if turn < FEWEST_TURNS or not all(copies.values()):
            return self.prompts[number % len(self.prompts)]
        if rest:
            return max(self.prompts, key=lambda prompt: fmean(copies[prompt.text]))
        return self.prompts[turn % len(self.prompts)]

    def _look(
        self, condition: Condition, prompt: Prompt, tokens: Sequence[Token], is_cut: bool
    ) -> None:
        """Bet on every token of a text. If the end of the text is not shown as a token, it counts
        as the token that tells least."""
        text: list[Key] = [*prompt.pieces, *(token.text for token in tokens)]
        before: list[Bins] | None = None
        self._mechanisms.start()
        self.endpoint.read_along(prompt.text, tokens)
        for place in range(len(tokens) + is_cut):
            is_new = not self.endpoint.knows(prompt.text, tokens[:place])
            plain = self._law(prompt, tokens, place)
            if plain is None or (condition.options and plain.has_twins):
                self.num_skipped += 1
                before = None
                self._mechanisms.lose_track()
                continue
            at = len(prompt.pieces) + place
            laws = condition.laws(plain, text[len(prompt.pieces) : at], prompt, self._slack)
            spot = Spot(text, at, prompt.text, plain, is_last=place == condition.length - 1)
            seen = tokens[place].text if place < len(tokens) else None
            self._bet(condition, spot, laws, before, seen)
            if is_new and (sample := self.endpoint.sample(prompt.text, tokens[:place])) is not None:
                row, bets = plain.index(sample.text), [plain.chances]
                self._samples.add(spot.view(plain), row, bets, slack=self._slack)
            self._places.append((condition, prompt, tokens[:place]))
            if place < len(tokens):
                self._note(condition, tokens[place], spot, laws[0])
            before = laws
            if self._is_rejected:
                return

    def _bet(
        self, condition: Condition, spot: Spot, laws: Sequence[Bins],
        before: Sequence[Bins] | None, seen: Key | None,
    ) -> None:  # fmt: skip
        """Bet on one token: once for each interpretation of the condition, and for the pool of all
        conditions."""
        slack = condition.slack(self._slack)
        parts = self.wealth.parts[condition.name]
        for number, (evidence, law) in enumerate(zip(parts, laws, strict=True)):
            if law.most.sum() > LOOSE or (seen is not None and not law.speaks_of(seen)):
                continue
            view = spot.view(law, before[number] if before else None)
            row = None if seen is None else law.index(seen)
            evidence.add(view, row, [misjudged(law, spot.plain)], slack=slack)
            if len(laws) == 1:
                bets = self._mechanisms.laws(law, spot.text, spot.place)
                self.wealth.pool.add(view, row, bets, slack=slack)
                if seen is not None:
                    self._mechanisms.see(seen)

    def _law(self, prompt: Prompt, tokens: Sequence[Token], place: int) -> Bins | None:
        """The law at a place, from a one-token request; or from the text itself if the endpoint
        cannot continue an answer."""
        if self.endpoint.can_continue or place == 0:
            return self.endpoint.law(prompt.text, tokens[:place])
        return Bins.of(tokens[place].top) if place < len(tokens) and tokens[place].top else None

    def _note(self, condition: Condition, token: Token, spot: Spot, law: Bins) -> None:
        """Record, for the estimate of bias, whether the token that a copying drafter would guess
        came; without such a guess, whether the likeliest token came."""
        if not condition.options:
            self.heard.append(Heard(token, spot.plain))
        guess = copied(spot.text, spot.place)
        is_copied = guess is not None and guess in law.keys
        aim = guess if guess is not None and is_copied else law.keys[0]
        chance = law.chance(aim)
        self._copies[condition.name, spot.prompt].append(chance if is_copied else 0.0)
        came = float(token.text == aim)
        self.guesses.append(Guess(condition.name, chance, came, is_copied))

    def _sampled(self) -> Evidence:
        """Test one-token samples, which cannot be speculated, at the places where the law was
        rejected: do they follow it?

        Samples are drawn until that is clear, at most MOST_SAMPLES.
        """
        name = self.wealth.suspect()
        looked = self.wealth.pool if name is None else self.wealth.parts[name][0]
        suspect = next((one for one in self.conditions if one.name == name), Condition("all"))
        condition = replace(suspect, options=suspect.options_at_once)
        options = condition.options
        evidence = _evidence() if options else self._samples
        places = [place for place in self._places if name in (None, place[0].name)]
        for number, (_, prompt, tokens) in enumerate(cycle(places)):
            is_clear = bends(evidence) or follows(evidence, looked.num_tokens)
            if is_clear or evidence.num_tokens >= MOST_SAMPLES:
                break
            plain = self._law(prompt, tokens, len(tokens))
            question = self.endpoint.one_token(prompt.text, tokens)
            question = replace(question, options={**self.endpoint.plain, **options})
            try:
                came = self.endpoint.ask(f"sample/{number}", question).choices[0].tokens
            except SpentError:
                break
            if plain is None or not came:
                continue
            law = changed(plain, options, slack=self._slack)
            if not law.speaks_of(came[0].text):
                continue
            text = [*prompt.pieces, *(token.text for token in tokens)]
            spot = Spot(text, len(text), prompt.text, plain)
            row, bets = law.index(came[0].text), [misjudged(law, plain)]
            evidence.add(spot.view(law), row, bets, slack=condition.slack(self._slack))
        return evidence

    def _hear(self) -> None:
        """Collect the laws of further texts, only for the check of log-probabilities."""
        plain = Condition("plain")
        while len(self.heard) < LEAST_HEARD:
            prompt = self._prompt(plain)
            tokens, _ = self._text(plain, prompt)
            for place, token in enumerate(tokens):
                if (law := self._law(prompt, tokens, place)) is not None:
                    self.heard.append(Heard(token, law))

    def _rounding(self) -> float:
        """Measure how much the law of a place differs between two requests: the largest ratio, less
        1."""
        worst = LEAST_SLACK
        for number in range(NUM_ASKED_AGAIN):
            prompt = self.prompts[number % len(self.prompts)].text
            law = self.endpoint.law(prompt, ())
            answer = self.endpoint.ask(f"again/{number}", self.endpoint.one_token(prompt))
            told = answer.choices[0].tokens
            if law is None or not told:
                continue
            again = Bins.of(told[0].top)
            for key, chance in zip(law.keys[:-1], law.chances.tolist(), strict=False):
                if chance > LIKELY and key in again.keys:
                    worst = max(worst, 2 * abs(again.chance(key) / chance - 1))
        return min(worst, MOST_SLACK)

    def _outcome(self, samples: Evidence | None) -> Outcome:
        """Collect all data that the finding needs."""
        return Outcome(
            self.wealth,
            self.level,
            self.guesses,
            samples,
            self.left_out,
            self.num_texts,
            self.num_skipped,
            self._slack,
            can_continue=self.endpoint.can_continue,
        )
