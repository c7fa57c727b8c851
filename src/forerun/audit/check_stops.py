"""Checks that stop strings and max_tokens cut a text exactly where they should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forerun.audit.bins import UNREADABLE
from forerun.audit.budget import SpentError
from forerun.audit.check_repeats import greedily
from forerun.audit.endpoint import Endpoint
from forerun.audit.findings import Finding, Status
from forerun.audit.prompts import COPYING
from forerun.audit.questions import Answer, Question, RefusedError, Token

LENGTH = 16
"""The number of tokens of the uncut answer."""
LIMITS = (1, 2, 3, 5, 8)
"""The values of max_tokens that are tried."""


@dataclass
class StopCheck:
    """Compares shortened answers with a greedy answer that was not shortened.

    problems: answers that were cut at a wrong place.
    notes: cuts that could not be compared, and why.
    """

    endpoint: Endpoint
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_compared: int = 0

    def run(self) -> Finding:
        """Request the whole text, then texts cut by limits and by stop strings that occur in it."""
        question = Question(COPYING.text, LENGTH, options=greedily(self.endpoint))
        try:
            whole = self.endpoint.ask("stop/whole", question)
            self._counts("whole", whole, LENGTH)
            for limit in LIMITS:
                self._limit(whole, limit)
            for number, (kind, stop) in enumerate(stops_in(whole)):
                self._stop(whole, kind, stop, f"stop/{number}", is_streamed=False)
                if number == 0:
                    self._stop(whole, kind, stop, "stop/streamed", is_streamed=True)
        except SpentError:
            self.notes.append("the budget did not last")
        except RefusedError as refusal:
            self.notes.append(f"refused: {refusal}")
        return self._finding()

    def _limit(self, whole: Answer, limit: int) -> None:
        """Compare the text under a token limit with the beginning of the whole text.

        If it is another text, greedy texts are not repeatable, which another check reports.
        """
        question = Question(COPYING.text, limit, options=greedily(self.endpoint))
        answer = self.endpoint.ask(f"limit/{limit}", question)
        if not whole.text.startswith(answer.text) and not answer.text.startswith(whole.text):
            self.notes.append(f"max_tokens={limit}: another text, so the cut cannot be compared")
            return
        self.num_compared += 1
        self._counts(f"max_tokens={limit}", answer, limit)

    def _counts(self, name: str, answer: Answer, limit: int) -> None:
        """Check that an answer's token counts agree with each other and with the limit."""
        choice = answer.choices[0]
        told = None if choice.tokens is None else len(choice.tokens)
        for count, source in ((answer.num_tokens, "usage"), (told, "logprobs")):
            if count is None:
                continue
            if count > limit:
                self.problems.append(f"{name}: {source} has {count} tokens")
            if count < limit and choice.reason == "length":
                self.problems.append(f"{name}: ended by length, but {source} has {count} tokens")
        total = (answer.extras.get("usage") or {}).get("total_tokens")
        parts = (answer.num_prompt_tokens, answer.num_tokens)
        if total is not None and None not in parts and total != sum(part or 0 for part in parts):
            self.problems.append(f"{name}: usage adds up {parts[0]} and {parts[1]} to {total}")

    def _stop(self, whole: Answer, kind: str, stop: str, name: str, *, is_streamed: bool) -> None:
        """Compare the text with a stop string with the whole text up to that string.

        kind: where the string lies, in words. The text must end right before it, and the finish
        reason must say so.
        """
        question = Question(
            COPYING.text,
            LENGTH,
            options=greedily(self.endpoint),
            stop=(stop,),
            is_streamed=is_streamed,
        )
        answer = self.endpoint.ask(name, question)
        expected = whole.text[: whole.text.index(stop)]
        way = f"stop {stop!r} {kind}{', streamed' if is_streamed else ''}"
        text = answer.text
        if not text.startswith(expected) and not (expected + stop).startswith(text):
            self.notes.append(f"{way}: another text, so the cut cannot be compared")
            return
        self.num_compared += 1
        if text == expected + stop:
            self.problems.append(f"{way}: the stop string itself is in the text")
        elif len(text) > len(expected):
            late = len(text) - len(expected)
            self.problems.append(f"{way}: the text goes on for {late} characters")
        elif len(text) < len(expected):
            self.problems.append(f"{way}: {len(expected) - len(text)} characters are missing")
        elif answer.choices[0].reason != "stop":
            self.problems.append(f"{way}: finish_reason is {answer.choices[0].reason!r}")

    def _finding(self) -> Finding:
        """A finding with all cuts that were wrong."""
        if self.num_compared == 0:
            words = "No cut text could be compared. " + "; ".join(self.notes)
            return Finding("stops and limits", Status.UNKNOWN, words.strip())
        words = f"{self.num_compared} cut texts compared with the uncut one."
        if self.problems:
            words += " " + "; ".join(self.problems) + "."
        if self.notes:
            words += " Note: " + "; ".join(self.notes) + "."
        return Finding(
            "stops and limits",
            Status.FAILED if self.problems else Status.PASSED,
            words,
            "cut texts that are wrong",
            float(len(self.problems)),
            None,
            "a cut that is off by one character or one token, at the places tried",
            {"compared": self.num_compared, "problems": self.problems, "notes": self.notes},
        )


def stops_in(whole: Answer) -> Iterator[tuple[str, str]]:
    """Stop strings that occur in a text: inside a token, across two tokens, and consisting of whole
    tokens."""
    tokens = whole.choices[0].tokens
    if not tokens or len(tokens) < 6 or UNREADABLE in whole.text:
        middle = len(whole.text) // 2
        stop = whole.text[middle : middle + 3]
        if stop and UNREADABLE not in stop:
            yield "in the text", stop
        return
    at = next((i for i in range(3, len(tokens) - 2) if _is_new(tokens, i)), 3)
    yield "inside a token", tokens[at].text[-2:]
    yield "across two tokens", tokens[at].text[-1:] + tokens[at + 1].text[:2]
    yield "over several tokens", "".join(token.text for token in tokens[at : at + 3])


def _is_new(tokens: tuple[Token, ...], at: int) -> bool:
    """Whether the end of a token does not occur earlier in the text."""
    end = tokens[at].text[-2:]
    return bool(end.strip()) and end not in "".join(token.text for token in tokens[:at])
