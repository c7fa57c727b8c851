"""Streams: signs of life, and pieces before one that fails."""

from __future__ import annotations

from typing import Any

import pytest
from asking import BODY, ask
from serving import Answered, PlainReply, gated

from forerun.serve.admission.client_request import Ticket
from forerun.serve.admission.errors import ApiError
from forerun.serve.http.requests import Bounds


def test_a_stream_that_waits_says_so() -> None:
    target, gate = gated()
    body = {**BODY, "stream": True, "max_tokens": 3}

    async def open_after_a_ping(received: Answered) -> None:
        if b": ping\n\n" in received.chunks:
            gate.set()

    hasty = {"bounds": Bounds(ping_seconds=0.01)}
    slow = ask({"body": body, "before_send": open_after_a_ping}, target=target, app=hasty)
    quick = ask({"body": body}, app={"bounds": Bounds(ping_seconds=60)})
    assert b": ping\n\n" in slow.chunks
    assert b": ping\n\n" not in quick.chunks
    assert slow.text == quick.text != ""
    assert slow.events[-1] == "[DONE]"


def test_pieces_before_one_that_cannot_be_worded_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Ticket.batches
    worded = PlainReply.piece

    async def at_once(ticket: Ticket) -> Any:
        yield [pair async for batch in batches(ticket) for pair in batch]

    def piece(reply: PlainReply, choice: int, piece: Any) -> Any:
        told.append(piece.text)
        if len(told) == 3:
            raise ApiError("No words.", status=500, code="wordless")
        return worded(reply, choice, piece)

    told: list[str] = []
    monkeypatch.setattr(Ticket, "batches", at_once)
    monkeypatch.setattr(PlainReply, "piece", piece)
    response = ask({"body": {**BODY, "stream": True}})
    assert response.text == "".join(told[:2]) != ""
    assert response.events[-2]["error"]["code"] == "wordless"
