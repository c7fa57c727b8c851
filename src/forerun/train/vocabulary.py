"""The draft vocabulary: the tokens that the target emits most often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.train.shards import Spoken


def likeliest_tokens(
    spoken: Sequence[Spoken],
    size: int,
    vocab_size: int,
    endings: Sequence[int],
    kept: Sequence[int] | NDArray[np.int64] = (),
) -> tuple[NDArray[np.int64], float]:
    """Ids (Vd,), ascending, and the share of all answer tokens that they cover.

    kept: tokens that are included first, however rare.
    """
    said = np.concatenate([text.tokens[text.is_answer] for text in spoken])
    counts = np.bincount(said, minlength=vocab_size)
    ranked = counts.copy()
    ranked[list(endings)] = counts.max() + 1  # always include the ending tokens
    ranked[list(kept)] = counts.max() + 1
    chosen = np.sort(np.argsort(-ranked, kind="stable")[: min(size, vocab_size)])
    return chosen, float(counts[chosen].sum() / counts.sum())
