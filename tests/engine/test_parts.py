"""Text handed out token by token: whole characters, nothing of a stop string, nothing lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.engine.text import TextStream
from forerun.models import TableModel


class Bytes:
    """A tokenizer of bytes; 256 is special, and shows nothing."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int], **_: Any) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    text = TextStream(Bytes())
    for token in [*"aé".encode(), 256]:
        text.push(token)
    assert text.release_parts() == [(0, "a"), (2, "é")]
    for token in "🙂".encode():
        assert text.release_parts() == []
        text.push(token)
    assert text.release_parts() == [(7, "🙂")]
    text.push(0xF0)
    assert text.release_parts() == []
    assert text.release_parts(final=True) == [], "the end cuts this character off"
    assert text.shown == "aé🙂"


def test_text_that_was_held_back_keeps_its_token() -> None:
    text = TextStream(Bytes(), ["abc"])
    text.push(ord("x"))
    text.push(ord("a"))
    text.push(ord("b"))
    assert text.release_parts() == [(0, "x")]
    text.push(ord("d"))
    assert text.release_parts() == [(1, "a"), (2, "b"), (3, "d")]
    assert [text.push(ord(letter)) for letter in "abc"] == [False, False, True]
    assert text.release_parts(final=True) == []
    assert text.shown == "xabd"


@pytest.mark.parametrize("stop", [(), ("aaaa", "bcab")])
def test_parts_of_a_stream_add_up(stop: tuple[str, ...]) -> None:
    law = np.zeros(256)
    law[list(b"abc")] = 1 / 3
    model: Any = TableModel(256, 0, {(): law})
    model.tokenizer = Bytes()
    options: dict[str, Any] = {
        "drafter": fr.drafters.NGram(),
        "draft_length": 5,
        "sampling": fr.Sampling(seed=5),
        "max_new_tokens": 80,
        "stop": stop,
    }
    stream = fr.stream(model, "abcabc", **options)
    pieces = list(stream)
    found = stream.results()
    assert found.tokens == fr.generate(model, "abcabc", **options).tokens
    assert found.finish_reason == ("stop_string" if stop else "length")
    assert "".join(piece.text for piece in pieces) == found.text
    assert [token for piece in pieces for token in piece.tokens] == found.tokens
    assert [fate for piece in pieces for fate in piece.fates] == found.fates
    parts = [part for piece in pieces for part in piece.parts]
    assert parts == list(zip(found.text, found.fates[: len(parts)], strict=True))
    assert {fate for _, fate in parts} >= {fr.Fate.ACCEPTED, fr.Fate.CORRECTION}


def test_a_stream_that_is_broken_off_tells_how_far_it_got() -> None:
    model = TableModel.random(5, 1, seed=0)
    stream = fr.stream(
        model, [[0], [1]], drafter=None, sampling=fr.Sampling(seed=1), max_new_tokens=50
    )
    pieces = [next(stream) for _ in range(6)]
    found = stream.results()
    assert [each.finish_reason for each in found] == ["cancelled", "cancelled"]
    for index, each in enumerate(found):
        seen = [token for piece in pieces if piece.index == index for token in piece.tokens]
        assert each.tokens == seen
        assert each.stats.rounds == 3
    assert list(stream) == []
