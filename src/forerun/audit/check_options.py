"""Checks that options change the law as they should, or are refused, and not ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from forerun.audit.bins import Bins, Key
from forerun.audit.budget import SpentError
from forerun.audit.conditions import Condition, between
from forerun.audit.endpoint import Endpoint
from forerun.audit.evidence import needed
from forerun.audit.findings import Finding, Status
from forerun.audit.prompts import Prompt
from forerun.audit.questions import Question, RefusedError

LEVEL = 0.003
"""The part of the audit's 1% significance level that this check has, divided equally among the
options."""
SURE = 0.01
"""An option counts as honoured once the same answers would come from a server that ignores it with
at most this probability."""
MARGIN = 0.04
"""A token this close to the edge of a truncation, as a ratio, may fall on either side."""
TRIED = (
    Condition("temperature", {"temperature": 0.2}),
    Condition("top_p", {"top_p": 0.5}),
    Condition("min_p", {"min_p": 0.4}),
    Condition("top_k", {"top_k": 2}),
    Condition("presence_penalty", {"presence_penalty": 2.0}),
    Condition("frequency_penalty", {"frequency_penalty": 2.0}),
)
"""The options to test; a ban by logit_bias is added if the ids of tokens are known."""
LENGTH = Condition.length
"""The number of tokens of a text."""
BAN = -100.0
"""The lowest bias that OpenAI's API allows; it bans a token."""

Laws = Callable[[Bins, Sequence[Key], Prompt], list[Bins]]
"""A function that gives the law under each valid interpretation of an option, from the plain law,
the tokens so far and the prompt."""


@dataclass
class Trial:
    """The test of one option.

    against_honoured: log-wealth of the bet that it is ignored, one for each valid interpretation.
    against_ignored: log-wealth of the bet that it is honoured.
    """

    name: str
    options: dict[str, Any]
    laws: Laws
    against_honoured: list[float] = field(default_factory=lambda: [0.0, 0.0])
    against_ignored: float = 0.0
    num_tokens: int = 0
    outcome: str = "undecided"

    def see(self, plain: Bins, key: Key, said: Sequence[Key], prompt: Prompt) -> None:
        """Update both bets with a token, by the laws with and without the option.

        key: the token that came.
        said: the tokens before it.
        Each bet is paid by the upper bound of the law that it bets against, so under that law its
        expected factor is at most 1.
        """
        self.num_tokens += 1
        laws = self.laws(plain, said, prompt)
        if not laws[0].speaks_of(key):
            return
        for number in range(len(self.against_honoured)):
            law = laws[min(number, len(laws) - 1)]
            bet = max(plain.chance(key), 1e-12)
            self.against_honoured[number] += math.log(bet / float(law.most[law.index(key)]))
        bound = float(plain.most[plain.index(key)])
        self.against_ignored += math.log(max(laws[0].chance(key), 1e-12) / bound)
        if min(self.against_honoured) >= needed(LEVEL / (len(TRIED) + 1)):
            self.outcome = "not honoured"
        elif self.against_ignored >= needed(SURE):
            self.outcome = "honoured"


@dataclass
class OptionCheck:
    """Tests options one after another, by requesting short texts.

    Each option gets an equal part of the remaining budget, and of the significance level.
    id_of: finds the id of a token from its text; gives None if the endpoint does not tell ids.
    """

    endpoint: Endpoint
    prompts: Sequence[Prompt]
    id_of: Callable[[str], int | None]  # of a token's text

    def run(self) -> Finding:
        """Test every option until it is decided or its share of the budget is spent."""
        trials = [*self._trials()]
        spent = False
        for trial in trials:
            with self.endpoint.budget.share(
                self.endpoint.budget.left // max(1, len(trials) - trials.index(trial))
            ):
                try:
                    self._try(trial)
                except SpentError:
                    spent = True
                except RefusedError as refusal:
                    trial.outcome = f"refused ({refusal.reason[:60]})"
        return _finding(trials, spent)

    def _trials(self) -> Iterator[Trial]:
        """The options to test, each with the law that it should lead to."""
        plain = self.endpoint.plain
        for tried in TRIED:
            laws = partial(tried.laws, slack=MARGIN)
            yield Trial(tried.name, {**plain, **tried.options}, laws)
        word = self.prompts[0].pieces[0]
        if (token := self.id_of(word)) is not None:
            options = {**plain, "logit_bias": {str(token): BAN}}
            yield Trial("logit_bias", options, lambda law, said, prompt: [without(law, word)])

    def _try(self, trial: Trial) -> None:
        """Request texts with an option until they show whether it is honoured.

        If no token of a text has a law that is known well enough, the option cannot be tested.
        """
        number = 0
        prompt = self.prompts[0]
        while trial.outcome == "undecided":
            name = f"option/{trial.name}/{number}"
            answer = self.endpoint.ask(name, Question(prompt.text, LENGTH, options=trial.options))
            tokens = answer.choices[0].tokens or ()
            if not tokens:
                trial.outcome = "not testable without log-probabilities"
                return
            for place, token in enumerate(tokens):
                law = self.endpoint.law(prompt.text, tokens[:place])
                if law is None:
                    continue
                said = [earlier.text for earlier in tokens[:place]]
                trial.see(law, token.text, said, prompt)
                if trial.outcome != "undecided":
                    return
            number += 1
            if trial.num_tokens == 0:
                trial.outcome = "not testable here"


def without(law: Bins, word: Key) -> Bins:
    """The law after banning one token."""
    is_left = np.array([key != word for key in law.keys])
    return between(law.keys, law.chances * is_left, law.most * is_left)


def _finding(trials: Sequence[Trial], spent: bool) -> Finding:
    """One finding for all options; it is a failure if any of them is ignored."""
    outcomes = {trial.name: trial.outcome for trial in trials}
    wrong = [name for name, outcome in outcomes.items() if outcome == "not honoured"]
    right = [name for name, outcome in outcomes.items() if outcome == "honoured"]
    refused = [name for name, outcome in outcomes.items() if outcome.startswith("refused")]
    rest = [name for name in outcomes if name not in {*wrong, *right, *refused}]
    parts = [
        f"{words}: {', '.join(names)}."
        for words, names in (
            ("Not honoured, or not at every token", wrong),
            ("Honoured", right),
            ("Refused", refused),
            ("Undecided", rest),
        )
        if names
    ]
    if spent:
        parts.append("The budget did not last for all.")
    status = Status.FAILED if wrong else Status.PASSED if right or refused else Status.UNKNOWN
    seen = sum(trial.num_tokens for trial in trials)
    return Finding(
        "options",
        status,
        " ".join(parts) or "Nothing could be asked.",
        "options not honoured",
        float(len(wrong)),
        None,
        f"an option that is ignored, if it is not named as undecided ({seen} tokens)",
        {"outcomes": outcomes, "level": LEVEL},
    )
