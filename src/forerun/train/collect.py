"""Collects conversations from a source until there are enough answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from forerun.train.collection import Collection
from forerun.train.shards import Spoken

MOST_REPEATS = 2000
"""Conversations in a row that are there already, after which there is nothing new to expect."""


class Source(Protocol):
    """Where conversations come from: the target here, or workers elsewhere."""

    def play(self) -> list[Spoken]:
        """Wait for a moment; returns the conversations that ended, perhaps none."""
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

    It ends early if the source has nothing new to say.  What has come is written in any case.
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
