"""Conversations from any source: written in shards, counted, none twice, also after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_training import some_texts

from forerun.train import collection as collections
from forerun.train.collection import MOST_REPEATS, Collection, collect, count_answers
from forerun.train.shards import Spoken, list_shards, read


class Recording:
    """A source that says what it was given, some texts at a time, and then fails or repeats."""

    def __init__(self, texts: list[Spoken], error: BaseException | None = None) -> None:
        self.texts, self.error, self.place = texts, error, 0

    def play(self) -> list[Spoken]:
        if self.place >= len(self.texts):
            if self.error is not None:
                raise self.error
            self.place = 0
        self.place += 3
        return self.texts[self.place - 3 : self.place]


def gathered(folder: Path, source: Recording, num_answer_tokens: float = float("inf")) -> list[int]:
    told: list[int] = []
    collection = Collection(folder, [])
    collect(
        source,
        collection,
        num_answer_tokens=num_answer_tokens,  # type: ignore[arg-type]
        seconds=float("inf"),
        report=told.append,
    )
    return told


def on_disk(folder: Path) -> list[list[int]]:
    return [text.tokens.tolist() for file in list_shards(folder) for text in read(file)]


def lists(texts: list[Spoken]) -> list[list[int]]:
    return [text.tokens.tolist() for text in texts]


def test_it_ends_when_there_is_enough(tmp_path: Path) -> None:
    texts = some_texts(30)
    told = gathered(tmp_path, Recording(texts), count_answers(texts[:10]))
    assert on_disk(tmp_path) == lists(texts[:12])  # three come at a time
    assert sum(told) == count_answers(texts[:12])


def test_shards_are_written_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = some_texts(30)
    monkeypatch.setattr(collections, "SHARD", 100)
    gathered(tmp_path, Recording(texts), count_answers(texts))
    assert on_disk(tmp_path) == lists(texts)
    shards = [read(file) for file in list_shards(tmp_path)]
    assert len(shards) > 3
    assert all(100 <= sum(map(len, shard)) < 100 + 3 * 30 for shard in shards[:-1])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no worker is left")])
def test_what_has_come_is_written_when_a_source_fails(tmp_path: Path, error: BaseException) -> None:
    texts = some_texts(12)
    with pytest.raises(type(error)):
        gathered(tmp_path, Recording(texts[:9], error))
    assert on_disk(tmp_path) == lists(texts[:9])
    told = gathered(tmp_path, Recording(texts), count_answers(texts))  # the same again, and more
    assert sum(told) == count_answers(texts[9:])
    assert on_disk(tmp_path) == lists(texts)


def test_a_source_that_only_repeats_itself_ends_it(tmp_path: Path) -> None:
    texts = some_texts(6)
    told = gathered(tmp_path, Recording(texts))
    assert on_disk(tmp_path) == lists(texts)
    assert len(told) == 2 + -(-MOST_REPEATS // 3)


def test_prompts_are_counted_by_how_their_conversations_begin(tmp_path: Path) -> None:
    def said(*tokens: int) -> Spoken:
        is_answer = np.arange(len(tokens)) >= 2
        return Spoken(np.array(tokens, np.int32), is_answer)

    openings = [[1, 2], [1, 3], [1, 2, 3]]
    collection = Collection(tmp_path, openings)
    collection.add([said(1, 2, 3, 4), said(1, 2, 5), said(1, 4, 1, 2)])
    collection.add([said(1, 2, 5)])  # a repeat is an answer too
    assert collection.asked == [3, 0, 0]
    collection.flush()
    assert Collection(tmp_path, openings[::-1]).asked == [0, 0, 2]


def test_repeats_are_counted_in_a_row(tmp_path: Path) -> None:
    first, second = some_texts(2)
    collection = Collection(tmp_path, [])
    for text, expected in ((first, 0), (first, 1), (first, 2), (second, 0), (first, 1)):
        collection.add([text])
        assert collection.num_repeats == expected
