"""Writes the answer of `/v1/responses`: one object, or a stream of events that build it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.engine.results import Generation, Piece
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.replies import Words, finish_of, told_fates, usage
from forerun.serve.openai.routes.chat_reply import ToldChoice
from forerun.serve.openai.thinking import Thought
from forerun.serve.openai.tools import Call, Told

PLAIN_FORMAT = {"type": "text"}
Event = dict[str, Any]


class ResponseReply:
    """Formats an answer as a response: items one after another, with numbered events.

    A whole answer is built by the same steps, without sending their events.
    """

    def __init__(
        self, offer: Offer, words: Words, ask: Ask, request_id: str, created: int, fingerprint: str
    ) -> None:
        self._offer, self._words, self._ask = offer, words, ask
        self._request_id, self._created, self._fingerprint = request_id, created, fingerprint
        self._told = ToldChoice(offer, ask)
        self._items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item goes on
        self._logprobs: list[dict[str, Any]] = []  # of all tokens so far
        self._num_events = 0

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """The complete response, built by the steps of a stream."""
        (answer,) = answers
        self._logprobs = self._words.chat_logprobs(answer.logprobs or ())
        for step in self._told.read(answer.text or "", final=True):
            self._take(step)
        self._end(answer)
        if self._ask.includes_fates:
            _, parts = self._told.track.take_whole(answer)
            self._items[0] |= told_fates(answer.tokens, answer.fates, parts)
        return self._response(answer)

    def opening(self) -> list[Event]:
        begun = self._response(None)
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def piece(self, choice: int, piece: Piece) -> list[Event]:
        """The events for new text. The first text of a piece has its log-probabilities and
        fates."""
        ask = self._ask
        _, parts = self._told.track.take_piece(piece)
        logprobs = self._words.chat_logprobs(piece.logprobs or ())
        self._logprobs += logprobs
        extra: dict[str, Any] = {}
        if ask.includes_fates:
            extra = told_fates(piece.tokens, piece.fates, parts)
        events: list[Event] = []
        for step in self._told.read(piece.text, final=piece.finish_reason is not None):
            events += self._take(step)
        deltas = [one for one in events if one["type"] == "response.output_text.delta"]
        has_more = bool(piece.tokens) and (ask.options.logprobs is not None or ask.includes_fates)
        if has_more and not deltas and not ask.detail["toolbox"].functions:
            events += self._take("")
            deltas = events[-1:]
        if deltas:
            deltas[0] |= {"logprobs": logprobs, **extra}
        return events

    def closing(self, answers: Sequence[Generation]) -> list[Event]:
        (answer,) = answers
        events = self._end(answer)
        response = self._response(answer)
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def failure(self, error: ApiError) -> list[Event]:
        """The last events if the request fails, instead of those of `closing`."""
        return [self._event("response.failed", response=self._response(None, error))]

    def _take(self, step: Told | Thought) -> list[Event]:
        """Add a step of the answer to the open item; if that is of another kind, a new item is
        opened first."""
        if isinstance(step, Call):
            return self._call(step)
        kind, text = ("reasoning", step.text) if isinstance(step, Thought) else ("message", step)
        events: list[Event] = []
        if not self._is_open or self._items[-1]["type"] != kind:
            events = [*self._close(), *self._open(kind)]
        part = self._items[-1]["content"][0]
        part["text"] += text
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        extra: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return [*events, self._in_part(f"response.{name}.delta", delta=text, **extra)]

    def _open(self, kind: str) -> list[Event]:
        """Begin an item with one part."""
        status = "in_progress"
        item: dict[str, Any] = {"id": self._id("msg"), "type": kind, "status": status}
        if kind == "reasoning":
            item |= {"id": self._id("rs"), "summary": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item["role"] = "assistant"
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._items.append({**item, "content": [part]})
        self._is_open = True
        added = {"output_index": len(self._items) - 1, "item": {**item, "content": []}}
        return [
            self._event("response.output_item.added", **added),
            self._in_part("response.content_part.added", part=dict(part)),
        ]

    def _close(self, status: str = "completed") -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        item["status"] = status
        part = item["content"][0]
        if item["type"] == "reasoning":
            done = self._in_part("response.reasoning_text.done", text=part["text"])
        else:
            part["logprobs"] = list(self._logprobs)
            told = {"text": part["text"], "logprobs": part["logprobs"]}
            done = self._in_part("response.output_text.done", **told)
        return [
            done,
            self._in_part("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=len(self._items) - 1, item=item),
        ]

    def _call(self, call: Call) -> list[Event]:
        """Add a function call as a complete item."""
        events = self._close()
        place = len(self._items)
        item = {
            "id": self._id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{self._request_id}_{place}",
            "name": call.name,
            "arguments": call.arguments,
        }
        self._items.append(item)
        begun = {**item, "status": "in_progress", "arguments": ""}
        where = {"item_id": item["id"], "output_index": place}
        done = {**where, "name": call.name, "arguments": call.arguments}
        return [
            *events,
            self._event("response.output_item.added", output_index=place, item=begun),
            self._event("response.function_call_arguments.delta", **where, delta=call.arguments),
            self._event("response.function_call_arguments.done", **done),
            self._event("response.output_item.done", output_index=place, item=item),
        ]

    def _end(self, answer: Generation) -> list[Event]:
        """End the answer; an empty one still gets an empty message."""
        status = "incomplete" if finish_of(answer.finish_reason) == "length" else "completed"
        events = [] if self._items else self._open("message")
        return [*events, *self._close(status)]

    def _id(self, kind: str) -> str:
        """The id of the next item."""
        place = len(self._items)
        return f"{kind}_{self._request_id}" + (f"_{place}" if place else "")

    def _event(self, kind: str, **fields: Any) -> Event:
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _in_part(self, kind: str, **fields: Any) -> Event:
        where = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        return self._event(kind, **where, content_index=0, **fields)

    def _response(self, answer: Generation | None, error: ApiError | None = None) -> dict[str, Any]:
        """The response object. Without an answer, its state before the first token."""
        status, output, counts, details = "in_progress", list[Any](), None, None
        if error is not None:
            status = "failed"
        elif answer is not None:
            is_cut = finish_of(answer.finish_reason) == "length"
            status = "incomplete" if is_cut else "completed"
            details = {"reason": "max_output_tokens"} if is_cut else None
            output = self._items
            counts = self._usage(answer)
        fields, told = self._ask.detail["fields"], self._ask.detail["told"]
        return {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": {"code": "server_error", "message": error.message} if error else None,
            "incomplete_details": details,
            "instructions": fields["instructions"],
            "max_output_tokens": fields["max_output_tokens"],
            "model": self._offer.name,
            "output": output,
            "parallel_tool_calls": fields["parallel_tool_calls"],
            "previous_response_id": None,
            "reasoning": {"effort": (fields["reasoning"] or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": fields["temperature"],
            "text": {"format": self._ask.detail["format"] or PLAIN_FORMAT},
            "tool_choice": told["tool_choice"] or "auto",
            "tools": told["tools"] or [],
            "top_p": fields["top_p"],
            "top_logprobs": fields["top_logprobs"] or 0,
            "truncation": fields["truncation"],
            "background": False,
            "service_tier": "default",
            "usage": counts,
            "user": fields["user"],
            "metadata": fields["metadata"] or {},
            "system_fingerprint": self._fingerprint,
        }

    def _usage(self, answer: Generation) -> dict[str, Any]:
        """The token counts under this route's names."""
        counts = usage(self._offer, self._ask, [answer])
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
            "speculation": counts["speculation"],
        }
