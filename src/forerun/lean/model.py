"""A transformers model on the lean CPU pass, as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forerun.lean.crew import Crew
from forerun.lean.rotary import rotary_of
from forerun.lean.rows import LeanRows
from forerun.lean.shallow import ShallowRows
from forerun.lean.weights import take, unfit
from forerun.models.base import (
    Kept,
    Parents,
    check_copy,
    check_layers,
    check_score,
    check_truncate,
    check_watched,
)
from forerun.models.first_layers import FirstLayers, check_depth
from forerun.models.huggingface import HuggingFaceModel
from forerun.models.rounded import Bits


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
        self._rotary = rotary_of(model)
        self._crew = Crew(num_threads)
        self.model = model
        self.tokenizer = tokenizer
        self.name: str = (model.config.name_or_path or type(model).__name__) + "-int8" * int8
        self.vocab_size: int = model.config.vocab_size
        self.max_context: int | None = model.config.max_position_embeddings
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = model.config.num_hidden_layers
        self.scores_trees = True
        self.compute_dtype = "float32"
        self._is_exact = not int8

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.pass_name})"

    @property
    def pass_name(self) -> str:
        """Which pass runs, for people to read."""
        return "lean CPU pass, float32"

    def start(self, num_rows: int, capacity: int = 0) -> LeanRows:
        return LeanRows(self._weights, self._rotary.angles, self._crew, num_rows)

    def score(
        self,
        state: LeanRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        return state.score(rows, tokens, num_logits, parents)

    def commit(self, state: LeanRows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        state.commit(rows, kept)

    def release(self, state: LeanRows, row: int) -> None:
        state.release(row)

    def fresh(self, text: Sequence[int]) -> Any:
        """Logits (V,) after a text from scratch: from transformers, whose weights these are, or
        from this pass if they were rounded."""
        if not self._is_exact:
            return self.score(self.start(1, len(text)), [0], [text], [1])[0, 0]
        with torch.inference_mode():
            ids = torch.tensor([list(text)], device=self.model.device)
            return self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]

    def copy_prefix(self, state: LeanRows, source: int, row: int, length: int) -> int:
        check_copy(state.lengths, source, row, length)
        return state.copy_prefix(source, row, length)

    def truncate(self, state: LeanRows, row: int, length: int) -> int:
        check_truncate(state.lengths, row, length)
        return state.truncate(row, length)

    def watch(self, state: LeanRows, layers: Sequence[int]) -> None:
        """Keep hidden states of what is scored from now on.

        0 is the embedding; `num_layers` is after the final norm, which is what the head reads.
        """
        check_layers(layers, self.num_layers)
        state.watch(layers)

    def watched(self, state: LeanRows, row: int) -> Any:
        check_watched(bool(state.layers), row)
        kept = state.kept[row]
        return None if kept is None else torch.from_numpy(kept)

    def first_layers(self, state: LeanRows, num_layers: int) -> FirstLayers:
        """The first layers under the model's own head, scoring on these very rows."""
        check_depth(self.name, self.num_layers, num_layers)
        return FirstLayers(self, num_layers, state, ShallowRows(state, num_layers))

    def rounded(self, bits: Bits) -> LeanModel | HuggingFaceModel:
        """A copy with linear weights of 8 or 4 bits, on this pass where it has such blocks."""
        if bits != "int8" or unfit(self.model, int8=True):
            return HuggingFaceModel(self.model, self.tokenizer).rounded(bits)
        copied = LeanModel(self.model, self.tokenizer, int8=True, num_threads=self._crew.size)
        copied.name = f"{self.name}-int8"
        return copied
