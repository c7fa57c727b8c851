"""The law: tokens of speculated text against the law of one-token requests at the same places."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

import numpy as np

from forerun.audit.bins import Bins, Key
from forerun.audit.budget import SpentError
from forerun.audit.endpoint import Endpoint
from forerun.audit.evidence import Evidence, needed
from forerun.audit.features import NAMES, copied, features
from forerun.audit.findings import Finding, Status
from forerun.audit.mechanisms import Mechanisms
from forerun.audit.prompts import Prompt
from forerun.audit.questions import Question, Token
from forerun.audit.strength import interval, smallest_bias, tokens_for

LEVEL = 0.006
"""The share of the audit's 1% that this check has."""
TEXT_LENGTH = 8
LEAST_SLACK = 1e-3
MOST_SLACK = 0.05
NUM_ASKED_AGAIN = 4
SUSPECT = 0.05
"""A level at which one-token samples are taken to differ from the log-probabilities told."""
FEWEST_TURNS = 2
"""Texts of every prompt before one is preferred."""
LEAST_HEARD = 64
"""Tokens whose log-probabilities are compared, even where the law is rejected sooner."""
LIKELY = 1e-3
"""Rounding is judged by tokens at least so likely."""


@dataclass
class Heard:
    """A token of speculated text, and the law at its place."""

    token: Token
    law: Bins


@dataclass
class LawCheck:
    """Runs until the law is rejected, or nothing is left to spend."""

    endpoint: Endpoint
    prompts: Sequence[Prompt]
    seeded: bool = True  # seeds are given with every other text
    slack: float | None = None  # None: measured
    level: float = LEVEL
    heard: list[Heard] = field(default_factory=list)
    _guesses: list[tuple[float, float, bool]] = field(default_factory=list)
    _control: Evidence = field(default_factory=lambda: Evidence(len(NAMES), 3, 1))
    _mechanisms: Mechanisms = field(default_factory=Mechanisms)
    _copies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_skipped: int = 0
    num_texts: int = 0

    def run(self) -> Finding:
        evidence: Evidence | None = None
        is_rejected = False
        try:
            slack = self.slack if self.slack is not None else self._rounding()
            evidence, self._control = (
                Evidence(len(NAMES), 3, num_others=1, num_mechanisms=count, slack=slack)
                for count in (len(self._mechanisms), 0)
            )
            for prompt, tokens, is_cut in self._texts():
                is_rejected = is_rejected or self._rejects(evidence, prompt, tokens, is_cut)
                if is_rejected and len(self.heard) >= LEAST_HEARD:
                    break
                if is_rejected:
                    self._hear(prompt, tokens)
        except SpentError:
            pass
        if evidence is None or evidence.num_tokens == 0:
            words = "No place was found where both the text and its distribution are known."
            return Finding("law", Status.UNKNOWN, words)
        return self._finding(evidence)

    def _texts(self) -> Iterator[tuple[Prompt, tuple[Token, ...], bool]]:
        for number in count():
            prompt = self._prompt(number)
            options = dict(self.endpoint.plain)
            if self.seeded and number // 2 % 2:
                options["seed"] = 1000 + number
            answer = self.endpoint.ask(
                f"text/{number}", Question(prompt.text, TEXT_LENGTH, options=options)
            )
            choice = answer.choices[0]
            self.num_texts += 1
            is_cut = choice.reason == "stop"
            yield prompt, choice.tokens or (), is_cut

    def _prompt(self, number: int) -> Prompt:
        """One text in three goes to the prompts in turn, the rest to the one whose copies are
        likeliest: faults of drafts show most where drafts are accepted.

        Which prompt comes next depends on earlier texts alone, so the test stays valid.
        """
        turn, rest = divmod(number, 3)
        if rest and turn >= FEWEST_TURNS and len(self._copies) == len(self.prompts):
            return max(self.prompts, key=lambda prompt: fmean(self._copies[prompt.text]))
        return self.prompts[(turn if turn >= FEWEST_TURNS else number) % len(self.prompts)]

    def _rejects(
        self, evidence: Evidence, prompt: Prompt, tokens: Sequence[Token], is_cut: bool
    ) -> bool:
        """Look at every token of a text; an end that shows no token counts as the least telling."""
        text: list[Key] = [*prompt.pieces, *(token.text for token in tokens)]
        before: Bins | None = None
        self._mechanisms.start()
        self.endpoint.read_along(prompt.text, tokens)
        for place in range(len(tokens) + is_cut):
            is_new = not self.endpoint.knows(prompt.text, tokens[:place])
            law = self._law(prompt, tokens, place)
            if law is None:
                self.num_skipped += 1
                before = None
                self._mechanisms.lose_track()
                continue
            at = len(prompt.pieces) + place
            likeliest = before.keys[0] if before is not None else None
            table = features(law, text, at, likeliest)
            last = text[at - 1] if at else ""
            places = [("prompt", prompt.text), ("last", last), (prompt.text, *text[:at])]
            other = law.chances if before is None else before.spread_over(law.keys)
            seen = law.index(tokens[place].text) if place < len(tokens) else None
            guess = copied(text, at)
            bets = self._mechanisms.laws(law, text, at)
            evidence.add(law, seen, table, places, [other], bets)
            if is_new and (plain := self.endpoint.sample(prompt.text, tokens[:place])) is not None:
                self._control.add(law, law.index(plain.text), table, places, [other])
            if place < len(tokens):
                self._mechanisms.see(tokens[place].text)
                self._note(law, tokens[place], guess)
                self._copies[prompt.text].append(law.chance(guess) if guess in law.keys else 0.0)
            before = law
            if evidence.log_wealth >= needed(self.level):
                return True
        return False

    def _law(self, prompt: Prompt, tokens: Sequence[Token], place: int) -> Bins | None:
        """The law of a place, by a request for it; told by the text itself where that cannot be."""
        if self.endpoint.can_continue or place == 0:
            return self.endpoint.law(prompt.text, tokens[:place])
        return Bins.of(tokens[place].top) if place < len(tokens) and tokens[place].top else None

    def _hear(self, prompt: Prompt, tokens: Sequence[Token]) -> None:
        """Laws of a text for the check of log-probabilities only."""
        for place, token in enumerate(tokens):
            if (law := self._law(prompt, tokens, place)) is not None:
                self.heard.append(Heard(token, law))

    def _note(self, law: Bins, token: Token, guess: Key | None) -> None:
        """For the interval: how often the copied token came, the likeliest where there is none."""
        self.heard.append(Heard(token, law))
        is_copied = guess is not None and guess in law.keys
        aim = guess if is_copied and guess is not None else law.keys[0]
        self._guesses.append((law.chance(aim), float(token.text == aim), is_copied))

    def _rounding(self) -> float:
        """How far the law of a place moves between two requests for it, as a ratio less 1."""
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

    def _finding(self, evidence: Evidence) -> Finding:
        wealth = evidence.log_wealth
        is_wrong = wealth >= needed(self.level)
        is_moot = is_wrong and self._control.log_wealth >= needed(SUSPECT)
        differences = [came - chance for chance, came, _ in self._guesses]
        low, high = interval(differences, 0.01)
        chances = [chance for chance, _, _ in self._guesses]
        least = smallest_bias(chances, self.level)
        share = sum(is_copied for *_, is_copied in self._guesses) / max(1, len(self._guesses))
        aim = "the copied token" if share > 0.5 else "the likeliest token"
        if least is None:
            catch = "nothing for certain, not even a gross change: raise --budget"
        else:
            catch = f"a change of {least:.3f} in the chance of {aim}, with a chance of 95%"
            if (more := tokens_for(least / 2, chances, self.level)) is not None:
                catch += f"; half of that would take about {more:,} tokens of text"
        odds = (
            f"odds against its stated distribution (e-value) {_power(wealth)}, "
            f"a verdict needs {1 / self.level:.0f}"
        )
        said = f"{evidence.num_tokens} tokens in {self.num_texts} texts"
        if is_moot:
            words = (
                f"Neither text nor one-token requests follow the log-probabilities told: {said}, "
            )
            words += f"{odds}. Some default of the server bends them, so nothing is said about its "
            words += "speculation."
        elif is_wrong:
            words = f"Text does not follow the distribution of one-token requests: {said}, {odds}."
        else:
            words = f"No difference found: {said}, {odds}."
        if not self.endpoint.can_continue:
            words += " Laws are those told with the text itself, which proves less."
        if self.num_skipped:
            words += (
                f" {self.num_skipped} places skipped, where the text is not read as its tokens."
            )
        return Finding(
            "law",
            _status(is_moot=is_moot, is_wrong=is_wrong, is_blind=least is None),
            words,
            f"mean change in the chance of {aim}",
            float(np.mean(differences)) if differences else None,
            (low, high),
            catch,
            {
                "log_e_value": wealth,
                "log_e_value_of_one_token_samples": self._control.log_wealth,
                "level": self.level,
                "slack": evidence.slack,
                "tokens": evidence.num_tokens,
                "texts": self.num_texts,
                "skipped": self.num_skipped,
            },
        )


def _status(*, is_moot: bool, is_wrong: bool, is_blind: bool) -> Status:
    """How the check ended; is_blind: not even a gross change would have been found."""
    if is_wrong:
        return Status.UNKNOWN if is_moot else Status.FAILED
    return Status.UNCLEAR if is_blind else Status.PASSED


def _power(logarithm: float) -> str:
    """e to a power, readable for very large and very small ones."""
    if abs(logarithm) < 10:
        return f"{math.exp(logarithm):.3g}"
    return f"10^{logarithm / math.log(10):.0f}"
