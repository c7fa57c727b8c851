"""An answer of `/v1/responses`: one object, or the events that build it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.engine.results import Generation, Piece
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.replies import Track, finish_of, told_fates, usage
from forerun.serve.openai.words import Words

PLAIN_FORMAT = {"type": "text"}


class ResponseReply:
    """One answer; events are numbered in the order they are made."""

    def __init__(
        self, offer: Offer, words: Words, ask: Ask, request_id: str, created: int, fingerprint: str
    ) -> None:
        self._offer, self._words, self._ask = offer, words, ask
        self._request_id, self._created, self._fingerprint = request_id, created, fingerprint
        self._item = f"msg_{request_id}"
        self._track = Track(offer, ask)
        self._num_events = 0

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        return self._response(answers[0])

    def opening(self) -> list[dict[str, Any]]:
        begun = self._response(None)
        item = self._message("in_progress", [])
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._event("response.output_item.added", output_index=0, item=item),
            self._in_part("response.content_part.added", part=self._part("", [])),
        ]

    def piece(self, choice: int, piece: Piece) -> list[dict[str, Any]]:
        ask = self._ask
        _, parts = self._track.take_piece(piece)
        has_tokens = bool(piece.tokens) and (ask.logprobs is not None or ask.includes_fates)
        if not piece.text and not has_tokens:
            return []
        logprobs = self._words.chat_logprobs(piece.logprobs or ())
        extra: dict[str, Any] = {}
        if ask.includes_fates:
            extra = told_fates(piece.tokens, piece.fates, parts)
        return [
            self._in_part(
                "response.output_text.delta", delta=piece.text, logprobs=logprobs, **extra
            )
        ]

    def closing(self, answers: Sequence[Generation]) -> list[dict[str, Any]]:
        response = self._response(answers[0])
        (item,) = response["output"]
        (part,) = item["content"]
        told = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            self._in_part("response.output_text.done", **told),
            self._in_part("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{response['status']}", response=response),
        ]

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        """Events instead of `closing`, if the request fails on its way."""
        return [self._event("response.failed", response=self._response(None, error))]

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _in_part(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, item_id=self._item, output_index=0, content_index=0, **fields)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _response(self, answer: Generation | None, error: ApiError | None = None) -> dict[str, Any]:
        """The whole object; without an answer, as it is before the first token."""
        status, output, counts, details = "in_progress", [], None, None
        if error is not None:
            status = "failed"
        elif answer is not None:
            is_cut = finish_of(answer.finish_reason) == "length"
            status = "incomplete" if is_cut else "completed"
            details = {"reason": "max_output_tokens"} if is_cut else None
            output = [self._answered(answer, status)]
            counts = self._usage(answer)
        fields = self._ask.detail["fields"]
        told = {"code": "server_error", "message": error.message} if error else None
        return {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": told,
            "incomplete_details": details,
            "instructions": fields["instructions"],
            "max_output_tokens": fields["max_output_tokens"],
            "model": self._offer.name,
            "output": output,
            "parallel_tool_calls": fields["parallel_tool_calls"],
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": fields["temperature"],
            "text": {"format": self._ask.detail["format"] or PLAIN_FORMAT},
            "tool_choice": fields["tool_choice"] or "auto",
            "tools": [],
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

    def _answered(self, answer: Generation, status: str) -> dict[str, Any]:
        logprobs = self._words.chat_logprobs(answer.logprobs or ())
        message = self._message(status, [self._part(answer.text or "", logprobs)])
        if self._ask.includes_fates:
            _, parts = Track(self._offer, self._ask).take_whole(answer)
            message |= told_fates(answer.tokens, answer.fates, parts)
        return message

    def _usage(self, answer: Generation) -> dict[str, Any]:
        counts = usage(self._offer, self._ask, [answer])
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
            "speculation": counts["speculation"],
        }
