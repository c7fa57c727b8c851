"""A stand-in server: OpenAI's completions and chat over a language, a round and its faults."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forerun.audit.wire import DONE, Call, Raw
from forerun.noise.race import fold
from standins.faults import Faults
from standins.language import Drafter, Language
from standins.options import KNOWN
from standins.rounds import Round, RuleRound
from standins.speaking import Said, Speaker

READ = {*KNOWN, "model", "prompt", "messages", "max_tokens", "n", "seed", "stop", "stream"} | {
    "logprobs", "top_logprobs", "stream_options"
}  # fmt: skip
ROUND_SECONDS = 0.02


@dataclass
class StandIn:
    """A server in this process; `send` makes it the transport of an audit."""

    language: Language = field(default_factory=Language)
    drafter: Drafter | None = None
    round: Round = field(default_factory=RuleRound)
    long_round: Round | None = None  # of answers that may be longer than 8 tokens
    draft_length: int = 4
    faults: Faults = field(default_factory=Faults)
    refuses: tuple[str, ...] = ()  # fields that are answered with 400
    has_logprobs: bool = True
    has_metrics: bool = True
    has_usage: bool = True
    has_echo: bool = False
    route: str = "completions"  # or "chat"
    seed: int | None = None  # of requests without one; None draws it
    model: str = "stand-in"

    def __post_init__(self) -> None:
        drafter = self.drafter or Drafter(self.language)
        self._speaker = Speaker(self.language, drafter, self.round, self.draft_length, self.faults,
                                self.long_round)  # fmt: skip
        self.num_requests = self.num_tokens = self.num_rounds = self.num_drafted = 0
        self._random = np.random.default_rng(self.seed)
        self._temperature: float | None = None
        self._lock = threading.Lock()

    def send(self, call: Call) -> Raw:
        with self._lock:
            self.num_requests += 1
            return self._send(call)

    def _send(self, call: Call) -> Raw:
        if call.path == "/v1/models":
            return Raw(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        if call.path == "/metrics" and self.has_metrics:
            return Raw(200, self._metrics())
        if call.path == "/tokenize" and call.body is not None and "prompt" in call.body:
            return Raw(200, {"tokens": self.language.tokens(call.body["prompt"])})
        paths = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
        if call.path != paths[self.route] or call.body is None:
            return _refusal(404, "There is no such route.")
        for name in call.body:
            known = READ | {"echo"} if self.has_echo else READ
            if name not in known or name in self.refuses:
                return _refusal(400, f"'{name}' is not supported.")
        return self._answer(call.body)

    def _answer(self, body: Mapping[str, Any]) -> Raw:
        source = body["prompt"] if self.route == "completions" else _conversation(body["messages"])
        prompt = tuple(self.language.tokens(source) if isinstance(source, str) else source)
        seed = self._seed(body)
        said = [self._say(prompt, fold(seed, index), body) for index in range(body.get("n", 1))]
        self.num_tokens += sum(len(one.tokens) for one in said)
        self.num_rounds += sum(len(one.runs) for one in said)
        self.num_drafted += sum(one.drafted for one in said)
        head = {"id": "x", "model": self.model, "system_fingerprint": "fp_stand_in"}
        counts = {"usage": _usage(prompt, said)} if self.has_usage else {}
        num_top = body.get("top_logprobs" if self.route == "chat" else "logprobs")
        if not self.has_logprobs or not body.get("logprobs"):
            num_top = None
        if body.get("stream"):
            return Raw(200, None, {}, tuple(self._events(head, counts, said, num_top)))
        if body.get("echo"):
            said = [self._echoed(prompt, one) for one in said]
        choices = [
            self._choice(index, one, one.text, slice(None), num_top) | {"finish_reason": one.reason}
            for index, one in enumerate(said)
        ]
        return Raw(200, head | {"choices": choices} | counts)

    def _echoed(self, prompt: tuple[int, ...], said: Said) -> Said:
        """An answer with its prompt before it."""
        laws = [self.language.logits(prompt[:end]) for end in range(len(prompt))]
        values = [float(law[token]) for law, token in zip(laws, prompt, strict=True)]
        text = "".join(self.language.text(token) for token in prompt) + said.text
        return replace(
            said,
            tokens=[*prompt, *said.tokens],
            logprobs=[*values, *said.logprobs],
            tops=[*laws, *said.tops],
            text=text,
        )

    def _seed(self, body: Mapping[str, Any]) -> int:
        seed = body.get("seed")
        if seed is None or self.faults.ignores_seed:
            is_drawn = self.seed is None
            seed = secrets.randbits(63) if is_drawn else int(self._random.integers(2**63))
        return fold(int(seed), self.num_requests) if self.faults.load_changes_text else int(seed)

    def _say(self, prompt: tuple[int, ...], seed: int, body: Mapping[str, Any]) -> Said:
        ignored = self.faults.ignores
        names = [name for name in KNOWN if body.get(name) is not None and name not in ignored]
        options = {name: body[name] for name in names}
        if self._temperature is None:
            self._temperature = options.get("temperature", 1.0)
        if self.faults.first_temperature:
            options["temperature"] = self._temperature
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        return self._speaker.speak(prompt, seed, options, body.get("max_tokens", 16), stops)

    def _choice(
        self, index: int, said: Said, text: str, span: slice, num_top: int | None
    ) -> dict[str, Any]:
        """A choice in the words of its route; span: which of its tokens are told."""
        told = None
        if num_top is not None:
            told = self._logprobs(said, span, num_top)
        if self.route == "chat":
            return {"index": index, "message": {"content": text}, "logprobs": told}
        return {"index": index, "text": text, "logprobs": told}

    def _logprobs(self, said: Said, span: slice, num_top: int) -> dict[str, Any]:
        words = [self.language.text(token) for token in said.tokens[span]]
        tops = [
            {self.language.text(int(token)): float(row[token]) for token in np.argsort(-row)}
            for row in said.tops[span]
        ]
        tops = [dict(list(top.items())[:num_top]) for top in tops]
        values = said.logprobs[span]
        if self.route == "completions":
            return {"tokens": words, "token_logprobs": values, "top_logprobs": tops}
        content = []
        for word, value, top in zip(words, values, tops, strict=True):
            others = [{"token": other, "logprob": chance} for other, chance in top.items()]
            content.append({"token": word, "logprob": value, "top_logprobs": others})
        return {"content": content}

    def _events(
        self, head: Mapping[str, Any], counts: Mapping[str, Any], said: Sequence[Said],
        num_top: int | None,
    ) -> Iterator[tuple[float, Any]]:  # fmt: skip
        """A chunk per round, and the counts."""
        now = 0.0
        for index, one in enumerate(said):
            start = shown = 0
            for number, run in enumerate(one.runs, start=1):
                now += ROUND_SECONDS
                end = min(start + run, len(one.tokens))
                whole = "".join(self.language.text(token) for token in one.tokens[:end])
                is_last = number == len(one.runs)
                text = one.text if is_last else whole[: len(one.text)]
                choice = self._choice(index, one, text[shown:], slice(start, end), num_top)
                if self.route == "chat":
                    choice["delta"] = choice.pop("message")
                yield now, dict(head) | {"choices": [choice | {"finish_reason": None}]}
                start, shown = end, len(text)
            ended = {"index": index, "finish_reason": one.reason, "logprobs": None}
            body: dict[str, Any] = {"delta": {}} if self.route == "chat" else {"text": ""}
            yield now, dict(head) | {"choices": [ended | body]}
        if counts:
            yield now, dict(head) | {"choices": []} | dict(counts)
        yield now, DONE

    def _metrics(self) -> str:
        accepted = self.num_tokens - self.num_rounds
        return (
            f"standin:spec_decode_num_drafts_total {self.num_rounds if self.num_drafted else 0}\n"
            f"standin:spec_decode_num_draft_tokens_total {self.num_drafted}\n"
            f"standin:spec_decode_num_accepted_tokens_total {accepted}\n"
        )


def _usage(prompt: Sequence[int], said: Sequence[Said]) -> dict[str, int]:
    new = sum(len(one.tokens) for one in said)
    counts = {"prompt_tokens": len(prompt), "completion_tokens": new}
    return counts | {"total_tokens": len(prompt) + new}


def _conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of a conversation; a last message of the assistant is gone on with."""
    words = " ".join(f"{message['role']}: {message['content']}" for message in messages)
    return words if messages[-1]["role"] == "assistant" else f"{words} assistant:"


def _refusal(status: int, message: str) -> Raw:
    return Raw(status, {"error": {"message": message, "type": "invalid_request_error"}})
