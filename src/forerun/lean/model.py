"""A transformers model on the lean CPU pass, as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forerun.lean.crew import Crew
from forerun.lean.linear import Floats
from forerun.lean.rows import LeanRows
from forerun.lean.weights import take
from forerun.models.base import check_score


class LeanModel:
    """Scores like the model it was made from, within float rounding.

    The weights are copied, in another order; `model` stays as it is and at hand.  With
    `int8=True` the copy is rounded to 8 bits: that is another model, and named so.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        int8: bool = False,
        num_threads: int | None = None,
    ) -> None:
        self._weights = take(model, int8)
        self._crew = Crew(num_threads or torch.get_num_threads())
        self.model = model
        self.tokenizer = tokenizer
        self.name: str = (model.config.name_or_path or type(model).__name__) + "-int8" * int8
        self.vocab_size: int = model.config.vocab_size
        self.max_context: int | None = model.config.max_position_embeddings

    def start(self, num_rows: int, capacity: int) -> LeanRows:
        return LeanRows(self._weights, self._angles, self._crew, num_rows, capacity)

    def score(
        self,
        state: LeanRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        return state.score(rows, tokens, num_logits)

    def commit(self, state: LeanRows, rows: Sequence[int], kept: Sequence[int]) -> None:
        state.commit(rows, kept)

    def release(self, state: LeanRows, row: int) -> None:
        state.release(row)

    def _angles(self, slots: int) -> tuple[Floats, Floats]:
        """Cosines and sines (slots, head size / 2), from the model's own rotary table."""
        with torch.inference_mode():
            both = self.model.model.rotary_emb(torch.zeros(1), torch.arange(slots)[None])
        half = self._weights.heads.size // 2
        cos, sin = (np.ascontiguousarray(part[0, :, :half].numpy()) for part in both)
        return cos, sin
