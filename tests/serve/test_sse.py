"""Streams: signs of life, and pieces before one that fails."""

from __future__ import annotations

import time
from typing import Any

import pytest
from asking import BODY, ask
from serving import Babbler, PlainReply

from forerun.serve.bounds import Bounds
from forerun.serve.errors import ApiError
from forerun.serve.ticket import Ticket


def test_a_stream_that_waits_says_so() -> None:
    target = Babbler(before=lambda ids: time.sleep(0.05))
    body = {**BODY, "stream": True, "max_tokens": 3}
    quick, slow = (
        ask({"body": body}, target=target, app={"bounds": Bounds(ping_seconds=seconds)})
        for seconds in (30, 0.01)
    )
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
