"""Collects the conversations of a run from a source until there are enough, without duplicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.train.shards import Spoken, list_shards, read, write_shard

MOST_REPEATS = 2000
"""If this many conversations in a row are duplicates, nothing new is expected from the source."""


class Source(Protocol):
    """A source of conversations: the target in this process, or workers elsewhere."""

    def play(self) -> list[Spoken]:
        """Work for a short time. Returns the conversations that have ended, if any."""
        ...


def collect(
    source: Source,
    collection: Collection,
    *,
    num_answer_tokens: int,
    seconds: float,
    report: Callable[[int], None],
) -> None:
    """Add to the collection until it has `num_answer_tokens`, or `seconds` have passed.

    It stops early if the source produces nothing new. Whatever was collected is written in any
    case.
    """
    start = time.perf_counter()
    try:
        while (
            collection.num_answer_tokens < num_answer_tokens
            and collection.num_repeats < MOST_REPEATS
            and time.perf_counter() - start < seconds
        ):
            report(collection.add(source.play()))
    finally:
        collection.flush()


SHARD = 500_000  # tokens per file, prompts included


class Collection:
    """Collects conversations and writes them in shards.

    openings: for each prompt, the token ids with which its conversations begin.
    """

    def __init__(self, folder: Path, openings: Sequence[Sequence[int]]) -> None:
        self._folder = folder
        self._waiting: list[Spoken] = []  # to be written
        self._known: set[bytes] = set()  # digests of conversations
        self._openings = [_digest(np.array(tokens, np.int32)) for tokens in openings]
        self._asked = dict.fromkeys(self._openings, 0)
        self.num_answer_tokens = 0
        files = list_shards(folder)
        self.num_shards = len(files)  # when the run began
        for file in files:
            spoken = read(file)
            self._count(spoken)
            self.num_answer_tokens += count_answers(spoken)
        self.num_repeats = 0  # conversations in a row that were there already

    @property
    def asked(self) -> list[int]:
        """How many times each prompt has been answered."""
        return [self._asked[opening] for opening in self._openings]

    def add(self, spoken: Sequence[Spoken]) -> int:
        """Add conversations, leaving out duplicates. Returns the number of new answer tokens."""
        fresh = self._count(spoken)
        self._waiting += fresh
        gained = count_answers(fresh)
        self.num_answer_tokens += gained
        if sum(map(len, self._waiting)) >= SHARD:
            self.flush()
        return gained

    def flush(self) -> None:
        """Write the conversations that have not been written yet."""
        if self._waiting:
            write_shard(self._folder, self._waiting)
            self._waiting = []

    def _count(self, spoken: Sequence[Spoken]) -> list[Spoken]:
        """Count the prompts as answered. Returns the conversations that are not duplicates."""
        fresh: list[Spoken] = []
        for conversation in spoken:
            opening = _digest(conversation.tokens[: int(conversation.is_answer.argmax())])
            if opening in self._asked:
                self._asked[opening] += 1
            digest = _digest(conversation.tokens)
            if digest in self._known:
                self.num_repeats += 1
                continue
            self.num_repeats = 0
            self._known.add(digest)
            fresh.append(conversation)
        return fresh


def count_answers(spoken: Sequence[Spoken]) -> int:
    """The number of answer tokens in these conversations."""
    return int(sum(text.is_answer.sum() for text in spoken))


def _digest(tokens: NDArray[np.int32]) -> bytes:
    return blake2b(tokens.tobytes(), digest_size=12).digest()
