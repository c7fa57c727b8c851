"""Groups texts of similar length into batches, one per training step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from forerun.train.shards import Spoken


def epoch(
    spoken: Sequence[Spoken], batch_tokens: int, seed: int, number: int
) -> list[list[Spoken]]:
    """All texts once, in an order that depends on `seed` and `number` only.

    Texts of similar length share a batch, and among those, texts with prompts of similar length:
    tokens before the first answer of a batch need keys and values, but no outputs.
    """
    shuffled = list(spoken)
    order = random.Random(f"{seed} {number}")
    order.shuffle(shuffled)
    batches = list(_packed(sorted(shuffled, key=_kind), batch_tokens))
    order.shuffle(batches)
    return batches


def _kind(spoken: Spoken) -> tuple[int, int]:
    """Sort key: the prompt length in units of 192, then the length in units of 32."""
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
