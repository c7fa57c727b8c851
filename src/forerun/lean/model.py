"""A Llama-family model on the lean CPU pass, as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.base.arrays import tensor_if_loaded
from forerun.lean.crew import Crew
from forerun.lean.noise import race
from forerun.lean.packed import Embedding, Packed, storage_name
from forerun.lean.rows import LeanRows, ShallowRows
from forerun.models.base import (
    CpuPass,
    Kept,
    NotPickled,
    Parents,
    check_copy,
    check_layers,
    check_score,
    check_truncate,
    check_watched,
    endings_of,
    generation_defaults,
    size_name,
)
from forerun.sampling.options import Law

if TYPE_CHECKING:
    from forerun.models.first_layers import FirstLayers
    from forerun.models.huggingface import HuggingFaceModel
    from forerun.models.rounded import Bits


class LeanModel(NotPickled, CpuPass):
    """Scores like the model it was made from, within float32 rounding.

    The weights are copied, in another order; `model` stays as it is and at hand.  Weights of 16
    bits stay so; they are multiplied in float32 all the same.  With `int8=True` the copy is rounded
    to 8 bits: that is another model, and named so.
    """

    why_not_lean = ""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        int8: bool = False,
        num_threads: int | None = None,
    ) -> None:
        from forerun.lean.weights import pack

        name = (model.config.name_or_path or type(model).__name__) + "-int8" * int8
        self._set(pack(model, int8), name, tokenizer, num_threads)
        self._model: Any = model

    @classmethod
    def from_packed(
        cls, packed: Packed, name: str, tokenizer: Any, load: Callable[[], Any]
    ) -> LeanModel:
        """A model whose weights were packed before.

        load: called for the transformers model when that is first needed.
        """
        made = cls.__new__(cls)
        made._set(packed, name, tokenizer, None)
        made._model, made._load = None, load
        return made

    def _set(self, packed: Packed, name: str, tokenizer: Any, num_threads: int | None) -> None:
        facts = packed.facts
        self.packed = packed
        self.tokenizer = tokenizer
        self.name = name
        self.source = ""  # where the weights come from, if the name does not say so
        self.vocab_size = facts.vocab_size
        self.max_context: int | None = facts.max_context
        self.hidden_size = facts.hidden_size
        self.num_layers = facts.num_layers
        self.scores_trees = True
        self.compute_dtype = "float32"
        self._embedding = None if packed.rows is None else Embedding(packed.rows)
        self._weights = packed.weights
        if self._embedding is not None:
            self._weights = packed.weights._replace(embedding=self._embedding.table)
        self._crew = Crew(num_threads)
        self._load: Callable[[], Any] | None = None
        self._loading = Lock()

    def __repr__(self) -> str:
        facts = self.packed.facts
        size = f"{facts.kind} of {size_name(facts.num_parameters)}"
        return f"{type(self).__name__}({self.name!r}, {size}, {self.pass_name})"

    @property
    def pass_name(self) -> str:
        """The pass and the format of the weights in words."""
        weights = f"{storage_name(self._weights.matrices)} weights"
        return f"lean CPU pass in float32, {weights}" + (f" {self.source}" if self.source else "")

    @property
    def model(self) -> Any:
        """The transformers model, loaded on first access."""
        with self._loading:
            if self._model is None and self._load is not None:
                self._model = self._load()
            return self._model

    @property
    def endings(self) -> Sequence[int]:
        """The tokens with which the model ends a text."""
        return self.packed.facts.endings if self._model is None else endings_of(self._model)

    @property
    def generation_defaults(self) -> dict[str, float]:
        """Sampling options that the model states for itself."""
        loaded = self._model
        return self.packed.facts.defaults if loaded is None else generation_defaults(loaded)

    @property
    def embedding(self) -> Any:
        """The token embedding (V, D), float32, as a NumPy array."""
        return self._weights.embedding if self._embedding is None else self._embedding.whole()

    def embeddings_of(self, tokens: Any) -> Any:
        """The embedding's rows for these tokens."""
        if self._embedding is not None:
            self._embedding.need(np.asarray(tokens))
        return self._weights.embedding[tokens]

    def start(self, num_rows: int, capacity: int = 0) -> LeanRows:
        angles = self.packed.rotary.angles
        return LeanRows(self._weights, angles, self._crew, num_rows, self._embedding)

    def score(
        self,
        state: LeanRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        """Logits (R, max(num_logits), V) as `LanguageModel.score` has them.

        A torch tensor if torch is loaded and `state.is_read_on_host` is false, else a NumPy array.
        """
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        logits = state.score(rows, tokens, num_logits, parents)
        return logits if state.is_read_on_host else tensor_if_loaded(logits)

    def row_race(self, law: Law, seed: tuple[Any, Any], position: int) -> int:
        """The token of a law that wins the race at a position.  seed: its low and high word."""
        scores = np.require(law.scores, np.float32, ("C", "W"))
        best, floor = np.float32(law.best), float(np.float32(law.floor))
        token = int(race(scores, best, law.temperature, floor, *seed, position))
        if token < 0:
            raise RuntimeError(f"No token of a law may be chosen: best {best}, floor {floor}.")
        return token

    def commit(self, state: LeanRows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        state.commit(rows, kept)

    def release(self, state: LeanRows, row: int) -> None:
        state.release(row)

    def fresh(self, text: Sequence[int]) -> Any:
        """Logits (V,) after a text, computed from scratch by transformers in float32; by this pass
        if the weights were rounded."""
        if self.packed.facts.is_rounded:
            return self.score(self.start(1, len(text)), [0], [text], [1])[0, 0]
        import torch

        from forerun.models.forward import exact_forward

        forward = exact_forward(self.model)
        with torch.inference_mode():
            return forward(forward.tokens(text), 1, use_cache=False).logits[0, -1]

    def copy_prefix(self, state: LeanRows, source: int, row: int, length: int) -> int:
        check_copy(state.lengths, source, row, length)
        return state.copy_prefix(source, row, length)

    def truncate(self, state: LeanRows, row: int, length: int) -> int:
        check_truncate(state.lengths, row, length)
        return state.truncate(row, length)

    def watch(self, state: LeanRows, layers: Sequence[int]) -> None:
        """Keep the hidden states of all tokens scored from now on.

        0 is the embedding; `num_layers` is after the final norm, which is what the head reads.
        """
        check_layers(layers, self.num_layers)
        state.watch(layers)

    def watched(self, state: LeanRows, row: int) -> Any:
        """Hidden states (N, layers * hidden) of the tokens that the last commit added to a row."""
        check_watched(bool(state.layers), row)
        kept = state.kept[row]
        return None if kept is None else tensor_if_loaded(kept)

    def first_layers(self, state: LeanRows, num_layers: int) -> FirstLayers:
        """A model of the first layers and the same head, which scores on the given rows."""
        from forerun.models.first_layers import FirstLayers, check_depth

        check_depth(self.name, self.num_layers, num_layers)
        return FirstLayers(self, num_layers, state, ShallowRows(state, num_layers))

    def rounded(self, bits: Bits) -> LeanModel | HuggingFaceModel:
        """A copy with linear weights of 8 or 4 bits: on this pass at 8 bits, where it fits, else on
        transformers."""
        from forerun.lean.weights import unfit
        from forerun.models.huggingface import HuggingFaceModel

        if bits != "int8" or unfit(self.model, int8=True):
            return HuggingFaceModel(self.model, self.tokenizer).rounded(bits)
        copied = LeanModel(self.model, self.tokenizer, int8=True, num_threads=self._crew.size)
        copied.name = f"{self.name}-int8"
        return copied
