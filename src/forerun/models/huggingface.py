"""Any decoder-only transformers model as a `LanguageModel`.

Three strategies keep rows (crop, snapshot, recompute); this file refuses what none of them can
serve, and picks the first that reproduces a fresh pass on the model at hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch

from forerun.errors import InputError, UnsupportedError, explain
from forerun.models.agreement import Probe
from forerun.models.attention import layer_kinds
from forerun.models.base import check_score
from forerun.models.crop import CropRows
from forerun.models.forward import Forward
from forerun.models.recompute import RecomputeRows
from forerun.models.snapshot import SnapshotRows

Strategy = Literal["crop", "snapshot", "recompute"]
Rows = CropRows | SnapshotRows | RecomputeRows

# Rotary tables that are rebuilt when a text outgrows the original context: past it, the scores of
# a text depend on what shares the pass with it.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class Candidate(NamedTuple):
    """A way to keep rows, and what the user should know if it is the best one left."""

    strategy: Strategy
    start: Callable[[int, int], Rows]  # (num_rows, capacity)
    cost: str = ""


class HuggingFaceModel:
    """Rows over a transformers causal language model, on its own device and in its own dtype.

    The strategy is tried out in a few tiny passes the first time rows are made: `"auto"` takes
    the fastest that holds, and one asked for by name is refused if it does not. The logits are
    inference-mode tensors: use them under `torch.inference_mode()`, or clone them.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, strategy: Literal["auto"] | Strategy = "auto"
    ) -> None:
        _refuse_unfit(model)
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.tokenizer = tokenizer
        self.name: str = model.config.name_or_path or type(model).__name__
        self.vocab_size: int = config.vocab_size
        self.max_context = _max_context(config)
        self._forward = Forward(model)
        self._asked = strategy
        self._candidates = self._find_candidates()
        self._chosen: Candidate | None = None

    @property
    def strategy(self) -> Strategy:
        """How rows are kept: "crop", "snapshot" or "recompute"."""
        return self._choice().strategy

    def start(self, num_rows: int, capacity: int) -> Rows:
        return self._choice().start(num_rows, capacity)

    def score(
        self,
        state: Rows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        with torch.inference_mode():
            return state.score(rows, tokens, num_logits)

    def commit(self, state: Rows, rows: Sequence[int], kept: Sequence[int]) -> None:
        with torch.inference_mode():
            state.commit(rows, kept)

    def release(self, state: Rows, row: int) -> None:
        state.release(row)

    def _find_candidates(self) -> list[Candidate]:
        """What the model's layers and signature allow, fastest first, less what was not asked."""
        if self._asked not in ("auto", *get_args(Strategy)):
            choices = ("auto", *get_args(Strategy))
            raise InputError(
                explain("Unknown strategy.", repr(self._asked), f"Use one of {choices}.")
            )
        forward = self._forward
        kinds = layer_kinds(self.model.config) if forward.takes_positions else None
        found: list[Candidate] = []
        if kinds is not None and self._asked in ("auto", "crop"):
            _refuse_attention(self.model)
            found.append(Candidate("crop", lambda n, size: CropRows(forward, kinds, n, size)))
        if forward.cache_argument:
            found += [
                Candidate(
                    "snapshot",
                    lambda n, _: SnapshotRows(forward, n),
                    "cannot share a pass between rows of different length, so rows are scored "
                    "one by one."
                    if kinds
                    else "",
                ),
                Candidate(
                    "snapshot",
                    lambda n, _: SnapshotRows(forward, n, token_by_token=True),
                    "continues from its cache correctly only token by token, so scoring a draft "
                    "costs one pass per token.",
                ),
            ]
        recompute = "has no cache that reproduces a fresh pass, so each score recomputes the text."
        found.append(Candidate("recompute", lambda n, _: RecomputeRows(forward, n), recompute))
        found = [candidate for candidate in found if self._asked in ("auto", candidate.strategy)]
        if not found:
            raise UnsupportedError(
                explain(
                    f"The {self._asked} strategy does not fit the layers of this model.",
                    type(self.model).__name__,
                    'Use strategy="auto".',
                )
            )
        return found

    def _choice(self) -> Candidate:
        """The first candidate that holds on this model, tried out once."""
        if self._chosen is None:
            with torch.inference_mode():
                probe = Probe(self._forward, self.vocab_size)
                holding = (c for c in self._candidates if _holds(c, probe))
                self._chosen = next(holding, None)
            if self._chosen is None:
                raise UnsupportedError(
                    explain(
                        "The logits of a text change with what follows it, from pass to pass, or "
                        "with the cache, so a draft cannot be scored in one pass.",
                        f"{type(self.model).__name__} with strategy {self._asked!r}",
                        'Use a causal model and strategy="auto".',
                    )
                )
            if self._asked == "auto" and self._chosen.cost:
                warnings.warn(f"{type(self.model).__name__} {self._chosen.cost}", stacklevel=3)
        return self._chosen


def _holds(candidate: Candidate, probe: Probe) -> bool:
    try:
        return probe.agrees_with(candidate.start(2, 16))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a model may object to a foreign cache or mask in any way it likes
        return False


def _refuse_unfit(model: Any) -> None:
    """Refuse, by name, what is not a decoder-only language model ready for inference."""
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedError(
            explain(
                "Encoder-decoder models are not supported: only decoder-only causal ones are.",
                kind,
                "Load a causal model, for example with AutoModelForCausalLM.",
            )
        )
    if getattr(model, "can_generate", lambda: True)() is False:
        raise UnsupportedError(
            explain(
                "The model has no language-model head, so it returns no logits.",
                kind,
                "Load it with AutoModelForCausalLM.",
            )
        )
    if getattr(model, "training", False):
        raise InputError(
            explain(
                "The model is in training mode, where dropout changes its law at every pass.",
                kind,
                "Call model.eval() first.",
            )
        )


def _refuse_attention(model: Any) -> None:
    """Per-row masks need an attention that honours a prepared mask."""
    implementation = model.config.get_text_config(decoder=True)._attn_implementation
    if implementation not in ("sdpa", "eager", None):
        raise UnsupportedError(
            explain(
                "Rows of different length need an attention that takes a prepared mask.",
                f"attn_implementation {implementation!r} in {type(model).__name__}",
                'Call model.set_attn_implementation("sdpa"), or pass strategy="snapshot" to '
                "score rows one by one.",
            )
        )


def _max_context(config: Any) -> int | None:
    longest: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for table in (rope, *rope.values()):  # one table, or one per layer kind
        if isinstance(table, dict) and table.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            original = getattr(config, "original_max_position_embeddings", None)
            return table.get("original_max_position_embeddings") or original or longest
    return longest
