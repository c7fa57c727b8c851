"""An endpoint that answers named questions within a budget; all answers are kept in a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.audit.bins import UNREADABLE, Bins, Key
from forerun.audit.budget import Budget
from forerun.audit.dialects import Dialect, read
from forerun.audit.journal import Journal
from forerun.audit.questions import Answer, Question, Token
from forerun.audit.speculating import told
from forerun.audit.wire import Call, EndpointError, Raw
from forerun.base.errors import explain

PLAIN: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}
"""The options of plain requests, whose law is the reference."""
NEUTRAL: Mapping[str, Any] = {
    "min_p": 0.0,
    "top_k": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
}
"""Neutral values of options that some servers set by default; each is sent unless the endpoint
refuses it."""


@dataclass
class Endpoint:
    """One endpoint. Sends it questions, and remembers the laws and samples that its answers
    contained."""

    journal: Journal
    budget: Budget
    dialect: Dialect
    plain: Mapping[str, Any] = field(default_factory=lambda: dict(PLAIN))
    can_continue: bool = True  # the beginning of an answer can be given
    told: tuple[str, float] | None = None  # the most that an answer told of its drafts
    _identity: tuple[str | None, str | None] | None = None
    _laws: dict[tuple[str, tuple[Key, ...]], Bins | None] = field(default_factory=dict)
    _samples: dict[tuple[str, tuple[Key, ...]], Token] = field(default_factory=dict)
    _num_prompt_tokens: dict[str, int | None] = field(default_factory=dict)

    def fetch(self, name: str, path: str) -> Raw:
        """Fetch a page of the server, which costs no tokens."""
        return self.journal.answer(name, Call("GET", path))

    def ask(self, name: str, question: Question) -> Answer:
        """Ask a question. Raises `SpentError` if the budget does not allow it, `RefusedError` if
        the endpoint refuses it."""
        self.budget.reserve(question.cost)
        return self._ask(name, question)

    def ask_together(self, questions: Sequence[tuple[str, Question]]) -> list[Answer]:
        """Ask several questions at once; tokens for all are reserved before the first is sent."""
        self.budget.reserve(sum(question.cost for _, question in questions))
        with ThreadPoolExecutor(len(questions)) as pool:
            return list(pool.map(lambda item: self._ask(*item), questions))

    def _ask(self, name: str, question: Question) -> Answer:
        """Ask a question whose tokens are already reserved, and record what it used."""
        used, num_prompt = 0, 0
        try:
            answer = read(self.journal.answer(name, self.dialect.call(question)))
            used, num_prompt = generated(answer, question), answer.num_prompt_tokens or 0
        finally:
            self.budget.settle(question.cost, used, num_prompt)
        self._check_identity(answer)
        counted = told(answer.extras) if question.max_tokens > 1 else None
        if counted is not None and (self.told is None or counted[1] > self.told[1]):
            self.told = counted
        return answer

    def _check_identity(self, answer: Answer) -> None:
        """Refuse an answer that names another model than earlier answers."""
        identity = (answer.model, answer.fingerprint)
        if self._identity is None:
            self._identity = identity
        if identity[0] != self._identity[0]:
            received = f"first {self._identity[0]!r}, then {identity[0]!r}"
            cure = "Name one model with --model, and audit while nothing is being deployed."
            raise EndpointError(
                explain("The endpoint changed its model during the audit.", received, cure)
            )

    def law(self, prompt: str, tokens: Sequence[Token]) -> Bins | None:
        """The law after a prompt and tokens, from a one-token request; None if it is not available.

        Whether it is available depends on the tokens before, never on the next token.
        """
        prefix = tuple(token.text for token in tokens)
        place = (prompt, prefix)
        if place not in self._laws:
            self._laws[place] = self._ask_law(prompt, tokens)
        return self._laws[place]

    def read_along(self, prompt: str, tokens: Sequence[Token]) -> None:
        """Learn the laws of all places of a text from one request, if prompts can be echoed.

        An echo lists the token that came, however unlikely. The law is made only of the likeliest
        tokens, which do not depend on it. If the server tokenises the text differently, nothing is
        learned.
        """
        places = [tuple(token.text for token in tokens[:end]) for end in range(len(tokens))]
        num_new = sum((prompt, place) not in self._laws for place in places)
        question = self.one_token(prompt, tokens)
        if not self.dialect.has_echo or num_new < 2 or UNREADABLE in "".join(question.prefix):
            return
        name = f"echo/{prompt[:12]}/{len(prompt)}/{'|'.join(question.prefix)}"
        answer = self.ask(name, replace(question, echoes=True))
        echoed = (answer.choices[0].tokens or ())[-len(tokens) - 1 : -1]
        if tuple(token.text for token in echoed) != question.prefix or not all(
            token.top for token in echoed
        ):
            return
        if self._is_in_step(prompt, len(tokens), answer):
            for place, token in zip(places, echoed, strict=True):
                self._laws.setdefault((prompt, place), self._bins(token))

    def knows(self, prompt: str, tokens: Sequence[Token]) -> bool:
        """Whether the law is already known, so that it costs no request."""
        return (prompt, tuple(token.text for token in tokens)) in self._laws

    def _ask_law(self, prompt: str, tokens: Sequence[Token]) -> Bins | None:
        """Ask for the law of a place, and keep the token that came with it as a sample."""
        question = self.one_token(prompt, tokens)
        if any(UNREADABLE in key for key in question.prefix) or (tokens and not self.can_continue):
            return None
        name = f"law/{prompt[:12]}/{len(prompt)}/{'|'.join(question.prefix)}"
        answer = self.ask(name, question)
        listed = answer.choices[0].tokens
        if not listed or not listed[0].top or not self._is_in_step(prompt, len(tokens), answer):
            return None
        self._samples[prompt, question.prefix] = listed[0]
        return self._bins(listed[0])

    def _bins(self, token: Token) -> Bins:
        """The law that was reported with a token.

        If fewer tokens are listed than were asked for, some of them have the same text.
        """
        law = Bins.of(likeliest(token.top, self.dialect.num_top))
        return replace(law, has_twins=len(token.top) < self.dialect.num_top)

    def sample(self, prompt: str, tokens: Sequence[Token]) -> Token | None:
        """The token that came with the law of a place: a sample without speculation."""
        return self._samples.get((prompt, tuple(token.text for token in tokens)))

    def one_token(self, prompt: str, tokens: Sequence[Token] = ()) -> Question:
        """The question that asks for the law after a prompt and the beginning of its answer."""
        ids = [token.id for token in tokens if token.id is not None]
        prefix = tuple(token.text for token in tokens)
        known = tuple(ids) if len(ids) == len(tokens) else None
        return Question(prompt, 1, prefix, known, self.plain)

    def _is_in_step(self, prompt: str, num_tokens: int, answer: Answer) -> bool:
        """Whether the server split the beginning of the answer into the same number of tokens."""
        if answer.num_prompt_tokens is None:
            return True
        if num_tokens == 0:
            self._num_prompt_tokens[prompt] = answer.num_prompt_tokens
        start = self._num_prompt_tokens.get(prompt)
        return start is None or answer.num_prompt_tokens == start + num_tokens


def likeliest(logprobs: Mapping[Key, float], count: int) -> dict[Key, float]:
    """The `count` largest log-probabilities."""
    ordered = sorted(logprobs, key=lambda key: (-logprobs[key], key))
    return {key: logprobs[key] for key in ordered[:count]}


def generated(answer: Answer, question: Question) -> int:
    """The number of tokens that an answer counts for the budget; at least one, so that an audit of
    an endpoint that reports nothing ends too."""
    listed = [choice.tokens for choice in answer.choices]
    if answer.num_tokens is not None:
        return max(1, answer.num_tokens)
    if all(tokens is not None for tokens in listed):
        return max(1, sum(len(tokens or ()) for tokens in listed))
    return question.cost
