"""Options under speculation: they change the law as they should, or are refused, not ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.audit.bins import TAIL, Bins, Key
from forerun.audit.budget import SpentError
from forerun.audit.endpoint import Endpoint
from forerun.audit.evidence import needed
from forerun.audit.findings import Finding, Status
from forerun.audit.option_laws import (
    Changed,
    below_min_p,
    beyond_top_p,
    heated,
    mass,
    penalised,
)
from forerun.audit.prompts import Prompt
from forerun.audit.questions import Question, RefusedError

LEVEL = 0.001
"""Of each option that is judged by chance: temperature and two penalties, 0.3% in all."""
SURE = 0.01
"""An option is said to work when a server that ignores it would look like this so rarely."""
LENGTH = 8
COLD, TOP_P, MIN_P, PENALTY, BAN = 0.2, 0.5, 0.4, 2.0, -100.0

Laws = Callable[[Bins, Sequence[Key], Sequence[Key]], list[Changed]]
"""The laws that an honest server may have: after the plain one, what was said, and the prompt."""
Forbidden = Callable[[Bins], set[Key]]


@dataclass
class Trial:
    """One option on the way to a verdict.

    against_honoured: log-wealth of the bet that it is ignored, one for each honest reading.
    against_ignored: log-wealth of the bet that it is honoured.
    """

    name: str
    options: dict[str, Any]
    laws: Laws | None = None
    forbidden: Forbidden | None = None
    against_honoured: list[float] = field(default_factory=lambda: [0.0, 0.0])
    against_ignored: float = 0.0
    num_tokens: int = 0
    num_forbidden: int = 0
    outcome: str = "undecided"

    def see(self, law: Bins, key: Key, said: Sequence[Key], prompt: Sequence[Key]) -> None:
        self.num_tokens += 1
        if self.forbidden is not None:
            out = self.forbidden(law)
            self.num_forbidden += key in out or (
                law.index(key) == len(law.keys) - 1 and TAIL in out
            )
            self.against_ignored -= math.log(max(1e-9, 1 - mass(law, out)))
        elif self.laws is not None:
            seen = law.index(key)
            readings = self.laws(law, said, prompt)
            plain = float(law.chances[seen])
            for number, reading in enumerate(readings):
                factor = max(plain, 1e-12) / max(float(reading.most[seen]), 1e-12)
                self.against_honoured[number] += math.log(factor)
            best = max(float(reading.chances[seen]) for reading in readings[:1])
            self.against_ignored += math.log(max(best, 1e-12) / float(law.most[seen]))
        self._judge()

    def _judge(self) -> None:
        if self.num_forbidden or (
            self.laws is not None and min(self.against_honoured) >= needed(LEVEL)
        ):
            self.outcome = "not honoured"
        elif self.against_ignored >= needed(SURE):
            self.outcome = "honoured"


@dataclass
class OptionCheck:
    endpoint: Endpoint
    prompts: Sequence[Prompt]
    id_of: Callable[[str], int | None]  # of a token's text

    def run(self) -> Finding:
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
        plain = self.endpoint.plain
        yield Trial(
            "temperature",
            {**plain, "temperature": COLD},
            laws=lambda law, said, prompt: [heated(law, COLD)] * 2,
        )
        yield Trial(
            "top_p",
            {**plain, "top_p": TOP_P},
            forbidden=lambda x: beyond_top_p(x, TOP_P),
        )
        yield Trial(
            "min_p",
            {**plain, "min_p": MIN_P},
            forbidden=lambda x: below_min_p(x, MIN_P),
        )
        word = self.prompts[0].pieces[0]
        if (token := self.id_of(word)) is not None:
            yield Trial(
                "logit_bias",
                {**plain, "logit_bias": {str(token): BAN}},
                forbidden=lambda law: {word} & set(law.keys),
            )
        yield Trial(
            "presence_penalty",
            {**plain, "presence_penalty": PENALTY},
            laws=lambda law, said, prompt: _readings(law, said, prompt, PENALTY, 0.0),
        )
        yield Trial(
            "frequency_penalty",
            {**plain, "frequency_penalty": PENALTY},
            laws=lambda law, said, prompt: _readings(law, said, prompt, 0.0, PENALTY),
        )

    def _try(self, trial: Trial) -> None:
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
                trial.see(law, token.text, said, prompt.pieces)
                if trial.outcome != "undecided":
                    return
            number += 1
            if trial.num_tokens == 0:
                trial.outcome = "not testable here"


def _readings(
    law: Bins, said: Sequence[Key], prompt: Sequence[Key], presence: float, frequency: float
) -> list[Changed]:
    """Penalties for what was generated, or for the prompt as well: servers differ in that."""
    return [
        penalised(law, said, presence, frequency),
        penalised(law, [*prompt, *said], presence, frequency),
    ]


def _finding(trials: Sequence[Trial], spent: bool) -> Finding:
    outcomes = {trial.name: trial.outcome for trial in trials}
    wrong = [name for name, outcome in outcomes.items() if outcome == "not honoured"]
    right = [name for name, outcome in outcomes.items() if outcome == "honoured"]
    refused = [name for name, outcome in outcomes.items() if outcome.startswith("refused")]
    rest = [name for name in outcomes if name not in {*wrong, *right, *refused}]
    parts = [
        f"{words}: {', '.join(names)}."
        for words, names in (
            ("Not honoured", wrong),
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
