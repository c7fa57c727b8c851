"""A message in Anthropic's words: blocks of text, thoughts and calls, whole or in events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forerun.engine.results import Generation, Piece
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.replies import num_cached, speculation
from forerun.serve.openai.routes.chat_reply import ToldChoice
from forerun.serve.openai.thinking import Thought
from forerun.serve.openai.tools import Call, Told

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesReply:
    """One answer."""

    def __init__(self, offer: Offer, ask: Ask, request_id: str) -> None:
        self._offer, self._ask, self._request_id = offer, ask, request_id
        self._told = ToldChoice(offer, ask)
        self._block: dict[str, Any] | None = None  # the one that is being sent
        self._num_blocks = 0

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """The message, with consecutive steps of one kind in one block."""
        (answer,) = answers
        blocks: list[dict[str, Any]] = []
        for step in self._told.read(answer.text or "", final=True):
            block, key, text = self._opened(step, len(blocks))
            if not blocks or key == "input" or blocks[-1]["type"] != block["type"]:
                blocks.append(block)
            blocks[-1][key] = json.loads(text) if key == "input" else blocks[-1][key] + text
        counts = self._counts(answers)
        return {**self._message(counts), "content": blocks, **self._end(answer)}

    def opening(self) -> list[dict[str, Any]]:
        num_prompt = sum(map(len, self._ask.prompts))
        counts = {"input_tokens": num_prompt, "output_tokens": 0}
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": {**self._message(counts), **nothing}}]

    def piece(self, choice: int, piece: Piece) -> list[dict[str, Any]]:
        """Events for new steps; the last block is closed with the answer."""
        is_last = piece.finish_reason is not None
        events = [
            event
            for step in self._told.read(piece.text, final=is_last)
            for event in self._events(step)
        ]
        if piece.finish_reason is not None:
            self._told.finish(piece.finish_reason)  # raises where the answer failed
            events += self._close()
        return events

    def closing(self, answers: Sequence[Generation]) -> list[dict[str, Any]]:
        (answer,) = answers
        counts = self._counts(answers)
        return [
            {"type": "message_delta", "delta": self._end(answer), "usage": counts},
            {"type": "message_stop"},
        ]

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        return [{"type": "error", "error": {"type": "api_error", "message": error.message}}]

    def _events(self, step: Told | Thought) -> list[dict[str, Any]]:
        """A step within its block, which is opened where another kind was open."""
        block, key, text = self._opened(step, self._num_blocks)
        events: list[dict[str, Any]] = []
        if self._block is None or key == "input" or self._block["type"] != block["type"]:
            events += self._close()
            self._block = block
            start = {"index": self._num_blocks, "content_block": block}
            events.append({"type": "content_block_start", **start})
        delta = {"type": f"{key}_delta", key: text}
        if key == "input":
            delta = {"type": "input_json_delta", "partial_json": text}
        place = {"index": self._num_blocks, "delta": delta}
        return [*events, {"type": "content_block_delta", **place}]

    def _close(self) -> list[dict[str, Any]]:
        if self._block is None:
            return []
        self._block = None
        self._num_blocks += 1
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]

    def _opened(self, step: Told | Thought, place: int) -> tuple[dict[str, Any], str, str]:
        """An empty block for a step, the field of it that the step fills, and its text."""
        if isinstance(step, Call):
            name = f"toolu_{self._request_id}_{place}"
            empty = {"type": "tool_use", "id": name, "name": step.name, "input": {}}
            return empty, "input", step.arguments
        if isinstance(step, Thought):
            return {"type": "thinking", "thinking": "", "signature": ""}, "thinking", step.text
        return {"type": "text", "text": ""}, "text", step

    def _message(self, counts: dict[str, Any]) -> dict[str, Any]:
        """The fields that a message has from its beginning."""
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._offer.name,
            "usage": counts,
        }

    def _counts(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """Tokens; those of the prompt that were computed earlier are counted apart."""
        cached = num_cached(self._ask, answers)
        return {
            "input_tokens": sum(map(len, self._ask.prompts)) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": sum(len(answer.tokens) for answer in answers),
            "speculation": speculation(self._offer, self._ask, answers),
        }

    def _end(self, answer: Generation) -> dict[str, Any]:
        """Why the answer ended; a stop sequence is named."""
        finish = self._told.finish(answer.finish_reason)
        if answer.finish_reason != "stop_string" or finish == "tool_calls":
            return {"stop_reason": REASONS[finish], "stop_sequence": None}
        text = str(self._offer.tokenizer.decode(answer.tokens))
        end = len(answer.text or "")
        places = {stop: text.find(stop, end) for stop in self._ask.options.stop}
        found = sorted((place, stop) for stop, place in places.items() if place >= 0)
        sequence = found[0][1] if found else None
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
