"""Writes a chat completion: content, thoughts, tool calls and log-probabilities, whole or in
chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.engine.results import Generation, Piece, TokenLogprob
from forerun.serve.admission.ask import Ask
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.replies import ChunkUsage, Track, Words, finish_of, told_fates, usage
from forerun.serve.openai.thinking import Thought, ThoughtReader
from forerun.serve.openai.toolbox import Toolbox
from forerun.serve.openai.tools import Call, Reader, Told


class ChatReply:
    """Formats the choices of a request as a chat completion."""

    def __init__(
        self, offer: Offer, words: Words, ask: Ask, request_id: str, created: int, fingerprint: str
    ) -> None:
        self._offer, self._words, self._ask = offer, words, ask
        self._request_id = request_id
        self._head = {
            "id": f"chatcmpl-{request_id}",
            "created": created,
            "model": offer.name,
            "system_fingerprint": fingerprint,
        }
        self._choices = [ToldChoice(offer, ask) for _ in range(ask.n)]
        self._usage = ChunkUsage(ask)

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        counts = usage(self._offer, self._ask, answers)
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": counts}

    def opening(self) -> list[dict[str, Any]]:
        return [
            self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
            for index in range(self._ask.n)
        ]

    def piece(self, choice: int, piece: Piece) -> list[dict[str, Any]]:
        """The chunks for new text, thoughts and calls. The first one has the log-probabilities and
        fates."""
        ask, state = self._ask, self._choices[choice]
        self._usage.count(piece)
        _, parts = state.track.take_piece(piece)
        told = state.read(piece.text, final=piece.finish_reason is not None)
        extra: dict[str, Any] = {}
        if piece.tokens and ask.options.logprobs is not None:
            extra["logprobs"] = self._logprobs(piece.logprobs)
        if piece.tokens and ask.includes_fates:
            extra |= told_fates(piece.tokens, piece.fates, parts)
        deltas = [self._delta(choice, state, step) for step in told]
        if extra and not deltas:
            deltas = [{"content": ""}]
        chunks = [self._chunk(choice, delta) for delta in deltas]
        if extra:
            chunks[0]["choices"][0] |= extra
        if piece.finish_reason is not None:
            finish = state.finish(piece.finish_reason)
            chunks.append(self._chunk(choice, {}, finish))
        return chunks

    def closing(self, answers: Sequence[Generation]) -> list[dict[str, Any]]:
        if not self._ask.includes_usage:
            return []
        counts = usage(self._offer, self._ask, answers)
        return [{**self._head, "object": "chat.completion.chunk", "choices": [], "usage": counts}]

    def _whole_choice(self, index: int, answer: Generation) -> dict[str, Any]:
        """A complete choice, with its text, thoughts and calls in separate fields."""
        state = self._choices[index]
        _, parts = state.track.take_whole(answer)
        told = state.read(answer.text or "", final=True)
        content = "".join(step for step in told if isinstance(step, str))
        thoughts = "".join(step.text for step in told if isinstance(step, Thought))
        calls = [self._call(index, i, c) for i, c in enumerate(t for t in told if _is_call(t))]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if state.has_thoughts:
            message["reasoning_content"] = thoughts or None
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": index,
            "message": message,
            "logprobs": None if answer.logprobs is None else self._logprobs(answer.logprobs),
            "finish_reason": state.finish(answer.finish_reason),
        }
        if self._ask.includes_fates:
            choice |= told_fates(answer.tokens, answer.fates, parts)
        return choice

    def _delta(self, choice: int, state: ToldChoice, step: Told | Thought) -> dict[str, Any]:
        """The `delta` of a chunk: what it adds to the message."""
        if isinstance(step, str):
            return {"content": step}
        if isinstance(step, Thought):
            return {"reasoning_content": step.text}
        place = state.num_told
        state.num_told += 1
        return {"tool_calls": [{"index": place, **self._call(choice, place, step)}]}

    def _call(self, choice: int, place: int, call: Told | Thought) -> dict[str, Any]:
        assert isinstance(call, Call)
        function = {"name": call.name, "arguments": call.arguments}
        name = f"call_{self._request_id}_{choice}_{place}"
        return {"id": name, "type": "function", "function": function}

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any]:
        return {"content": self._words.chat_logprobs(logprobs or ()), "refusal": None}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {**self._head, "object": "chat.completion.chunk"}
        return {**head, "choices": [choice], **self._usage.field()}


class ToldChoice:
    """One choice as far as it was sent to the client."""

    def __init__(self, offer: Offer, ask: Ask) -> None:
        toolbox: Toolbox = ask.detail["toolbox"]
        writing = toolbox.writing
        self.track = Track(offer, ask)
        self.num_told = 0  # calls in chunks
        self._reader: Reader | None = None if writing is None else writing.reader(toolbox.names)
        self._has_calls = False
        thoughts: dict[str, bool] | None = ask.detail["thoughts"]
        self._thoughts = None if thoughts is None else ThoughtReader(**thoughts)

    @property
    def has_thoughts(self) -> bool:
        """Whether the choice may contain thoughts."""
        return self._thoughts is not None

    def read(self, text: str, *, final: bool) -> list[Told | Thought]:
        """Split the new text into thoughts, content and calls."""
        parts: list[str | Thought] = [text] if text else []
        if self._thoughts is not None:
            parts = self._thoughts.push(text, final=final)
        told: list[Told | Thought] = []
        for part in parts:
            told += [part] if isinstance(part, Thought) else self._calls(part)
        if final and self._reader is not None:
            told += self._reader.end()
        self._has_calls |= any(map(_is_call, told))
        return told

    def _calls(self, text: str) -> list[Told]:
        return [text] if self._reader is None else self._reader.push(text)

    def finish(self, reason: str) -> str:
        finish = finish_of(reason)
        return "tool_calls" if self._has_calls and finish == "stop" else finish


def _is_call(step: Told | Thought) -> bool:
    return isinstance(step, Call)
