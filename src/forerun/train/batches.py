"""Which texts share a step: similar ones, as many as a step may hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from forerun.train.shards import Spoken


def epoch(
    spoken: Sequence[Spoken], batch_tokens: int, seed: int, number: int
) -> list[list[Spoken]]:
    """All texts once, in an order that is the same whenever it is asked for.

    Texts of similar length go together, and among those the ones with similarly long prompts:
    what stands before every answer of a batch is only looked back at.
    """
    shuffled = list(spoken)
    order = random.Random(f"{seed} {number}")
    order.shuffle(shuffled)
    batches = list(_packed(sorted(shuffled, key=_kind), batch_tokens))
    order.shuffle(batches)
    return batches


def _kind(spoken: Spoken) -> tuple[int, int]:
    """Whether the prompt is short, longer, ...; then the length to a multiple of 32."""
    return int(np.argmax(spoken.is_answer)) // 192, -(-len(spoken) // 32)


def _packed(spoken: Sequence[Spoken], batch_tokens: int) -> Iterator[list[Spoken]]:
    batch: list[Spoken] = []
    longest = 0
    for text in spoken:
        longest = max(longest, len(text))
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch, longest = [], len(text)
        batch.append(text)
    if batch:
        yield batch
