"""Writes questions in the formats of OpenAI's two routes, and reads the answers.

Servers differ in details: llama.cpp, for example, answers completions with log-probabilities in
chat's format. Any known format is read on any route.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.audit.questions import NUM_TOP, Answer, Choice, Chunk, Question, RefusedError, Token
from forerun.audit.wire import DONE, Call, EndpointError, Raw
from forerun.base.errors import explain


@dataclass(frozen=True)
class Dialect:
    """The format in which one endpoint is asked.

    route: "completions" or "chat". prefill: extra fields with which a chat continues the
    assistant's last message; None if it cannot. num_top: the largest number of likeliest tokens
    that it reports.
    """

    route: str
    base: str = "/v1"
    model: str | None = None
    num_top: int = NUM_TOP
    prefill: Mapping[str, Any] | None = None
    has_echo: bool = False  # log-probabilities of prompts can be had
    prompt_ids: Mapping[str, tuple[int, ...]] | None = None  # of prompts, where ids are used

    @property
    def path(self) -> str:
        """The path to which questions are sent."""
        return (
            f"{self.base}/completions"
            if self.route == "completions"
            else (f"{self.base}/chat/completions")
        )

    def call(self, question: Question) -> Call:
        """The HTTP request for a question on this route.

        Fields that a question does not need are left out, because servers may refuse unknown
        fields.
        """
        body: dict[str, Any] = {"max_tokens": question.max_tokens}
        if self.model is not None:
            body["model"] = self.model
        body |= self._said(question)
        body |= question.options
        if question.n > 1:
            body["n"] = question.n
        if question.echoes:
            body["echo"] = True
        if question.stop:
            body["stop"] = list(question.stop)
        if question.is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if question.wants_logprobs and self.num_top:
            if self.route == "completions":
                body["logprobs"] = self.num_top
            else:
                body |= {"logprobs": True, "top_logprobs": self.num_top}
        return Call("POST", self.path, body)

    def _said(self, question: Question) -> dict[str, Any]:
        """The prompt and the beginning of the answer, as text, as ids, or as messages."""
        begun = "".join(question.prefix)
        if self.route == "completions":
            ids = (self.prompt_ids or {}).get(question.prompt)
            if ids is not None and question.prefix_ids is not None:
                return {"prompt": [*ids, *question.prefix_ids]}
            return {"prompt": question.prompt + begun}
        messages = [{"role": "user", "content": question.prompt}]
        if not begun:
            return {"messages": messages}
        messages.append({"role": "assistant", "content": begun})
        return {"messages": messages, **(self.prefill or {})}


def read(raw: Raw) -> Answer:
    """Read a response; raises for refusals and for responses that make no sense."""
    if 400 <= raw.status < 500:
        raise RefusedError(raw.status, _message(raw.body))
    if raw.status != 200:
        cure = "Look into the server's log; an audit needs answers with status 200."
        received = f"status {raw.status}: {_message(raw.body)}"
        raise EndpointError(explain("The endpoint failed.", received, cure))
    try:
        return _streamed(raw) if raw.events else _whole(raw.body, raw.seconds)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        shown = repr(raw.events[:2] if raw.events else raw.body)[:200]
        cure = "Check that the address ends in /v1 and belongs to an OpenAI-compatible server."
        raise EndpointError(
            explain("The endpoint's answer cannot be read.", f"{shown} ({error!r})", cure)
        ) from error


def _message(body: Any) -> str:
    """The reason in the body of an error, for the formats of several servers."""
    if isinstance(body, Mapping):
        error = body.get("error", body.get("detail", body.get("message", body)))
        if isinstance(error, Mapping):
            error = error.get("message", error)
        return str(error)[:300]
    return str(body)[:300]


def _whole(body: Any, seconds: float) -> Answer:
    """Read a response that was not streamed."""
    choices = tuple(
        Choice(_text(choice), _tokens(choice), choice.get("finish_reason"))
        for choice in sorted(body["choices"], key=lambda choice: choice.get("index", 0))
    )
    if not choices:
        raise ValueError("no choices")
    return _answer(choices, body, (), seconds)


def _streamed(raw: Raw) -> Answer:
    """Read a streamed response, joining its events by choice. Other fields come from the last event
    that has them."""
    texts: dict[int, str] = {}
    tokens: dict[int, list[Token] | None] = {}
    reasons: dict[int, str | None] = {}
    chunks: list[Chunk] = []
    last: dict[str, Any] = {}
    for seconds, event in raw.events:
        if event == DONE:
            continue
        if "error" in event:
            raise ValueError(_message(event))
        last |= {name: value for name, value in event.items() if value is not None}
        for choice in event.get("choices") or ():
            index = choice.get("index", 0)
            part, new = _text(choice), _tokens(choice)
            texts[index] = texts.get(index, "") + part
            kept = tokens.setdefault(index, [])
            if new is not None and kept is not None:
                kept += new
            if choice.get("finish_reason"):
                reasons[index] = choice["finish_reason"]
            if part or new:
                count = None if new is None else len(new)
                chunks.append(Chunk(seconds, index, len(part), count))
    if not texts:
        raise ValueError("no choices in the stream")
    choices = tuple(
        Choice(texts[index], tuple(kept) if (kept := tokens[index]) else None, reasons.get(index))
        for index in sorted(texts)
    )
    return _answer(choices, last, tuple(chunks), raw.seconds)


def _answer(
    choices: tuple[Choice, ...], body: Mapping[str, Any], chunks: tuple[Chunk, ...], seconds: float
) -> Answer:
    """Combine the choices with the other fields of a body: counts, model and fingerprint."""
    usage = body.get("usage") or {}
    return Answer(
        choices,
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        body.get("model"),
        body.get("system_fingerprint"),
        chunks,
        seconds,
        {name: value for name, value in body.items() if name != "choices"},
    )


def _text(choice: Mapping[str, Any]) -> str:
    """The text of a choice or of a part of it, on either route."""
    if isinstance(choice.get("text"), str):
        return str(choice["text"])
    said = choice.get("message") or choice.get("delta") or {}
    return str(said.get("content") or "")


def _tokens(choice: Mapping[str, Any]) -> tuple[Token, ...] | None:
    """The tokens of a choice with their log-probabilities, in either format; None if these are not
    reported."""
    told = choice.get("logprobs")
    if not told:
        return None
    if told.get("content") is not None:
        return tuple(_chat_token(token) for token in told["content"])
    if not told.get("tokens"):
        return None
    tops: Iterable[Any] = told.get("top_logprobs") or [{}] * len(told["tokens"])
    return tuple(
        Token(text, _number(value or 0.0), _merged((top or {}).items()))  # None: nothing before it
        for text, value, top in zip(told["tokens"], told["token_logprobs"], tops, strict=True)
    )


def _chat_token(token: Mapping[str, Any]) -> Token:
    """A token and the likeliest tokens in its place, from chat's format."""
    top: Sequence[Mapping[str, Any]] = token.get("top_logprobs") or ()
    listed = _merged((str(other["token"]), _number(other["logprob"])) for other in top)
    return Token(str(token["token"]), _number(token["logprob"]), listed, token.get("id"))


def _number(value: Any) -> float:
    """A log-probability; raises if it is invalid. Values slightly above 0 are rounded to 0."""
    number = float(value)
    if math.isnan(number) or number > 1e-3:
        raise ValueError(f"{number} is no log-probability")
    return min(number, 0.0)


def _merged(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Log-probabilities by text; the probabilities of tokens with the same text are added."""
    merged: dict[str, float] = {}
    for text, value in pairs:
        number = _number(value)
        if text in merged:
            number = min(0.0, float(math.log(math.exp(merged[text]) + math.exp(number))))
        merged[text] = number
    return merged
