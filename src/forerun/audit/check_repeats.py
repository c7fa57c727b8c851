"""Checks repeatability: the same question and seed when idle, streamed, under load, cached, and
with n > 1.

If two answers differ, the law at that place shows whether rounding explains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.audit.budget import SpentError
from forerun.audit.endpoint import Endpoint
from forerun.audit.findings import Finding, Status
from forerun.audit.prompts import COPYING, Prompt
from forerun.audit.questions import Answer, Choice, Chunk, Question, RefusedError, Token

LENGTH = 16
"""The number of tokens of an answer."""
NUM_OTHERS = 5
"""The number of other requests made at the same time, as load."""
SEED = 18
COINCIDENCE = -9.2
"""A text with a log-probability below this hardly ever comes twice by chance."""
NEAR = 0.1
"""If the log-probabilities of two tokens differ by at most this many nats, rounding may swap
them."""


@dataclass(frozen=True)
class Fork:
    """The first place at which two answers differ.

    place: the number of equal tokens before it (characters, if tokens are not reported).
    gap: the difference of the log-probabilities of the two next tokens; None if unknown.
    """

    place: int
    gap: float | None

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding may explain the difference."""
        return self.gap is not None and self.gap <= NEAR

    @property
    def words(self) -> str:
        """The place and the gap in words, for a report."""
        if self.gap is None:
            return f"at {self.place}, of unknown size"
        return f"at token {self.place}, where the two differ by {self.gap:.2g} nats"


def first_fork(endpoint: Endpoint, prompt: str, one: Choice, other: Choice) -> Fork | None:
    """The first place at which two answers differ; None if they are equal."""
    if one.text == other.text:
        return None
    if one.tokens is None or other.tokens is None:
        return Fork(_common(one.text, other.text), None)
    place = _common([t.text for t in one.tokens], [t.text for t in other.tokens])
    if place == min(len(one.tokens), len(other.tokens)):
        return Fork(place, None)
    gap = _gap(endpoint, prompt, one.tokens[:place], one.tokens[place], other.tokens[place])
    return Fork(place, gap)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """The number of leading items that two sequences share."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _gap(
    endpoint: Endpoint, prompt: str, before: Sequence[Token], one: Token, other: Token
) -> float | None:
    """The difference in log-probability of two tokens at a place, from a one-token request; None if
    it is not reported."""
    try:
        law = endpoint.law(prompt, before)
    except (SpentError, RefusedError):
        return None
    if law is None or one.text not in law.keys or other.text not in law.keys:
        return None
    chances = [max(law.chance(token.text), 1e-12) for token in (one, other)]
    return abs(math.log(chances[0] / chances[1]))


def greedily(endpoint: Endpoint) -> dict[str, Any]:
    """The options for a greedy answer."""
    return {**endpoint.plain, "temperature": 0.0}


@dataclass
class Repeats:
    """One question asked in several situations.

    name: "seeded" or "greedy". options: the request options, with which the text should always be
    the same. answers: the answers by situation.
    """

    endpoint: Endpoint
    prompt: Prompt
    name: str
    options: Mapping[str, Any]
    answers: dict[str, Answer] = field(default_factory=dict)

    def run(self) -> None:
        """Ask in every situation: idle twice, streamed, under load, and again when all is cached.

        If the budget runs out or the endpoint refuses, the answers so far are kept.
        """
        question = Question(self.prompt.text, LENGTH, options=self.options)
        self._ask("idle", question)
        self._ask("idle again", question)
        self._ask("streamed", replace(question, is_streamed=True))
        self._ask_under_load(question)
        self._ask("warm", question)

    def _ask(self, setting: str, question: Question) -> None:
        """Ask once, and keep the answer under the name of the situation."""
        self.answers[setting] = self.endpoint.ask(f"repeat/{self.name}/{setting}", question)

    def _ask_under_load(self, question: Question) -> None:
        """Ask together with other questions, so that the server batches them."""
        others = [
            (
                f"repeat/{self.name}/other {number}",
                Question(
                    f"{number} {COPYING.text}",
                    LENGTH // 2,
                    options=self.endpoint.plain,
                    wants_logprobs=False,
                ),
            )
            for number in range(NUM_OTHERS)
        ]
        first = (f"repeat/{self.name}/under load", question)
        self.answers["under load"] = self.endpoint.ask_together([first, *others])[0]

    @property
    def num_texts(self) -> int:
        """The number of different texts among the answers."""
        return len({answer.text for answer in self.answers.values()})


def check_repeats(
    endpoint: Endpoint, prompt: Prompt, *, has_seeds: bool
) -> tuple[Finding, list[Sequence[Chunk]]]:
    """Check repeatability. Returns the finding, and the chunks of the streamed answers."""
    greedy = Repeats(endpoint, COPYING, "greedy", greedily(endpoint))
    seeded = Repeats(endpoint, prompt, "seeded", {**endpoint.plain, "seed": SEED})
    problems: list[str] = []
    notes: list[str] = []
    for repeats in [seeded, greedy] if has_seeds else [greedy]:
        try:
            repeats.run()
        except SpentError:
            notes.append(f"the budget did not last for all settings ({repeats.name})")
        except RefusedError as refusal:
            notes.append(f"refused ({repeats.name}): {refusal}")
        _compare(endpoint, repeats, problems, notes)
    if has_seeds:
        _compare_samples(endpoint, prompt, problems, notes)
    else:
        notes.append("seeds are refused, so only greedy texts were compared")
    streams = [answer.chunks for each in (greedy, seeded) for answer in each.answers.values()]
    return _finding([greedy, seeded], problems, notes), [chunks for chunks in streams if chunks]


def _compare(endpoint: Endpoint, repeats: Repeats, problems: list[str], notes: list[str]) -> None:
    """Compare every answer with the first, and add what differs to problems or notes.

    A greedy text may differ at a near-tie. A seeded one may not: its random numbers are the same,
    and two tokens that are nearly equally likely are rarely also nearly tied for these numbers.
    """
    if "idle" not in repeats.answers:
        return
    first = repeats.answers["idle"].choices[0]
    forks = {}
    for setting, answer in repeats.answers.items():
        fork = first_fork(endpoint, repeats.prompt.text, first, answer.choices[0])
        if fork is not None:
            forks[setting] = fork
    for setting, fork in forks.items():
        words = f"{repeats.name}, {setting}: another text than idle, {fork.words}"
        is_greedy = repeats.name == "greedy"
        if is_greedy and fork.is_near_tie:
            notes.append(f"{words}: a near-tie")
        else:
            problems.append(words)
    if "idle again" in forks and repeats.name == "seeded":
        problems.insert(0, "the seed is not honoured: two idle requests differ")


def _compare_samples(
    endpoint: Endpoint, prompt: Prompt, problems: list[str], notes: list[str]
) -> None:
    """Ask twice for n = 2: the pairs must be equal, and the two texts of a pair should differ."""
    question = Question(prompt.text, LENGTH, options={**endpoint.plain, "seed": SEED}, n=2)
    try:
        answers = [endpoint.ask(f"repeat/n/{number}", question) for number in range(2)]
    except RefusedError as refusal:
        notes.append(f"n > 1 is refused: {refusal.reason[:80]}")
        return
    except SpentError:
        notes.append("the budget did not last for n > 1")
        return
    texts = [[choice.text for choice in answer.choices] for answer in answers]
    if len(texts[0]) != 2:
        problems.append(f"n = 2 gave {len(texts[0])} samples")
    elif texts[0] != texts[1]:
        problems.append("n = 2 with one seed gave other texts the second time")
    elif texts[0][0] == texts[0][1] and _is_unlikely(answers[0].choices[0]):
        problems.append("n = 2 gave the same text twice")


def _is_unlikely(choice: Choice) -> bool:
    """Whether the probability of this text is so low that it hardly comes twice in a row by
    chance."""
    told = choice.tokens or ()
    return sum(token.logprob for token in told) < COINCIDENCE


def _finding(both: Sequence[Repeats], problems: Sequence[str], notes: Sequence[str]) -> Finding:
    """One finding for the seeded and the greedy answers."""
    num_asked = sum(len(each.answers) for each in both)
    if num_asked < 2:
        return Finding("repeatability", Status.UNKNOWN, "; ".join(notes) or "Nothing was asked.")
    counts = {each.name: each.num_texts for each in both if each.answers}
    told = ", ".join(f"{name} {count} distinct" for name, count in counts.items())
    words = f"{num_asked} answers of {LENGTH} tokens: {told}."
    if problems:
        words += " " + "; ".join(problems) + "."
    if notes:
        words += " Note: " + "; ".join(notes) + "."
    is_noted = any("near-tie" in note for note in notes)
    status = Status.FAILED if problems else Status.NOTED if is_noted else Status.PASSED
    return Finding(
        "repeatability",
        status,
        words,
        "distinct texts beyond the first",
        float(sum(counts.values()) - len(counts)),
        None,
        f"any difference within {LENGTH} tokens in one of the settings asked",
        {"distinct": counts, "problems": list(problems), "notes": list(notes)},
    )
