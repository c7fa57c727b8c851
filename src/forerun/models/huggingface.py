"""Any decoder-only transformers model as a `LanguageModel`.

Three strategies keep rows: crop, snapshot and recompute. This file refuses models that none of them
can serve, and picks the first strategy that reproduces a fresh pass on the given model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import Any, Literal, NamedTuple, Self, get_args
from weakref import ref

import torch

from forerun.base.errors import InputError, UnsupportedError, explain, warn
from forerun.base.on_device import can_decide
from forerun.models.agreement import Probe
from forerun.models.attention import layer_kinds
from forerun.models.base import (
    Kept,
    NotPickled,
    Parents,
    check_copy,
    check_layers,
    check_score,
    check_truncate,
    check_watched,
    size_name,
)
from forerun.models.crop import CropRows
from forerun.models.first_layers import FirstLayers, check_depth, truncated
from forerun.models.forward import Forward, exact_forward
from forerun.models.rounded import Bits, rounded_copy
from forerun.models.snapshot import RecomputeRows, SnapshotRows
from forerun.models.trial_results import LOCK, Findings

# Rotary tables that are rebuilt when a text outgrows the original context: past it, the scores of
# a text depend on what shares the pass with it.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

Strategy = Literal["crop", "snapshot", "recompute"]
Rows = CropRows | SnapshotRows | RecomputeRows

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class Candidate(NamedTuple):
    """A strategy, how it makes rows, and the warning for the user if it is chosen."""

    strategy: Strategy
    start: Callable[[Forward, int, int], Rows]  # (forward, num_rows, capacity)
    cost: str = ""


class HuggingFaceModel(NotPickled):
    """Rows over a transformers causal language model, on its own device and in its own dtype.

    The strategy is tested in a few tiny passes the first time rows are made: `"auto"` takes the
    fastest that agrees with a fresh pass, and one given by name is refused if it does not. The
    logits are inference-mode tensors: use them under `torch.inference_mode()`, or clone them.

    why_not_lean: the reason why the lean CPU pass is not used.
    source: where the weights come from, if the name does not say so.
    findings: results of trial passes; `forerun.wrap` lets wrappers of a model share them.
    """

    why_not_lean = "only `load` takes it: the weights are copied"
    source = ""
    _has_rounded_weights = False

    def __init__(
        self, model: Any, tokenizer: Any = None, strategy: Literal["auto"] | Strategy = "auto"
    ) -> None:
        refuse_unfit(model)
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.tokenizer = tokenizer
        self.name: str = model.config.name_or_path or type(model).__name__
        self.vocab_size: int = config.vocab_size
        self.max_context = max_context(config)
        self.hidden_size: int = getattr(config, "hidden_size", 0)  # 0: layers differ in size
        self.num_layers: int = getattr(config, "num_hidden_layers", 0)
        self._forward = Forward(model)
        self._asked = strategy
        self._candidates = self._find_candidates()
        self.findings = Findings(ref(model))

    def __repr__(self) -> str:
        count = sum(weight.numel() for weight in self.model.parameters())
        size = f"{self.model.config.model_type} of {size_name(count)}"
        return f"{type(self).__name__}({self.name!r}, {size}, {self.pass_name})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with weights of its own; transformers models, unlike ours, can be copied."""
        other = copy(self)
        vars(other).update(deepcopy(vars(self), memo))
        return other

    @property
    def pass_name(self) -> str:
        """The library, dtype and device of the pass in words."""
        dtype = str(self._forward.dtype).removeprefix("torch.")
        weights = [f"weights {self.source}"] if self.source else []
        return ", ".join(["transformers", dtype, str(self._forward.device), *weights])

    @property
    def on_gpu(self) -> bool:
        """Whether the model computes on a CUDA device."""
        return bool(self._forward.device.type == "cuda")

    @property
    def decides_on_device(self) -> bool:
        """Whether kernels can judge its logits on the GPU that has computed them."""
        is_double = self._forward.dtype is torch.float64
        return not is_double and can_decide(self.model, self.vocab_size)

    @property
    def identity(self) -> Findings:
        """The key under which facts about the model are kept; wrappers of one model share it."""
        return self.findings

    @property
    def strategy(self) -> Strategy:
        """The way to keep rows: "crop", "snapshot" or "recompute"; may run the trial."""
        return self._choice().strategy

    @property
    def scores_trees(self) -> bool:
        """Whether the nodes of a tree get the scores of their paths run alone; tested in a few tiny
        passes on first use."""
        with LOCK:
            if self.findings.scores_trees is None:
                chosen, forward = self._choice(), self._tried()
                with torch.inference_mode():
                    self.findings.scores_trees = chosen.strategy == "crop" and _holds(
                        Probe(forward, self.vocab_size).agrees_on_trees_with, chosen, forward
                    )
            return self.findings.scores_trees

    def start(self, num_rows: int, capacity: int = 0) -> Rows:
        return self._choice().start(self._forward, num_rows, capacity or self.max_context or 0)

    def score(
        self,
        state: Rows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        if parents is not None and not self.scores_trees:
            wrong = "This model cannot score trees, because its cache or its positions forbid it."
            received = f"{type(self.model).__name__} with strategy {self.strategy!r}"
            raise UnsupportedError(explain(wrong, received, "Draft chains: leave out `parents`."))
        with torch.inference_mode():
            if isinstance(state, CropRows):
                return state.score(rows, tokens, num_logits, parents)
            return state.score(rows, tokens, num_logits)

    def commit(self, state: Rows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        with torch.inference_mode():
            state.commit(rows, kept)

    def watch(self, state: Rows, layers: Sequence[int]) -> None:
        """Keep the hidden states after these layers of all tokens scored from now on.

        0 is the embedding; `num_layers` is after the final norm, which is what the head reads.
        """
        if isinstance(state, RecomputeRows) or not self._shows_states:
            wrong = "The hidden states of this model cannot be read: that takes a strategy other "
            wrong += "than recompute, and one vector per token and layer."
            received = f"{type(self.model).__name__} with strategy {self.strategy!r}"
            raise UnsupportedError(explain(wrong, received, "Use a drafter that needs none."))
        check_layers(layers, self.num_layers)
        state.watch_layers(layers)

    def watched(self, state: Rows, row: int) -> Any:
        """Hidden states (N, layers * hidden) of the tokens that the last commit added to a row."""
        watch = None if isinstance(state, RecomputeRows) else state.watch
        check_watched(watch is not None, row)
        return watch and watch.kept(row)

    def first_layers(self, state: Rows, num_layers: int) -> FirstLayers:
        """A model of the first layers and the same head, which scores on the given rows."""
        if not isinstance(state, CropRows):
            wrong = "Only rows kept by the crop strategy can be shared with the first layers."
            received = f"{type(self.model).__name__} with strategy {self.strategy!r}"
            raise UnsupportedError(explain(wrong, received, "Use another drafter."))
        check_depth(self.name, self.num_layers, num_layers)
        shared_rows = state.seen_by(Forward(truncated(self.model, num_layers)))
        return FirstLayers(self, num_layers, state, shared_rows)

    def rounded(self, bits: Bits) -> HuggingFaceModel:
        """A copy with linear weights of 8 or 4 bits, which shares everything else.

        The trial uses the exact weights while they exist. Rounding weights does not change which
        strategy is right, but it can magnify the rounding errors of a pass, and the trial fails.
        """
        other = copy(self)
        other.findings = copy(self.findings)
        other._has_rounded_weights = True
        other.name = f"{self.name}-{bits}"
        other.model = rounded_copy(self.model, bits)
        other._forward = Forward(other.model)
        return other

    def release(self, state: Rows, row: int) -> None:
        state.release(row)

    def copy_prefix(self, state: Rows, source: int, row: int, length: int) -> int:
        """Copy the first tokens of `source` to an empty row; returns the length that was copied.

        Snapshot rows of recurrent models copy their whole state or nothing.
        """
        check_copy(state.lengths, source, row, length)
        with torch.inference_mode():
            return state.copy_prefix(source, row, length)

    def truncate(self, state: Rows, row: int, length: int) -> int:
        """Keep the first `length` tokens of a row; returns the length that was kept.

        Snapshot rows of recurrent models keep all or nothing.
        """
        check_truncate(state.lengths, row, length)
        with torch.inference_mode():
            return state.truncate(row, length)

    def fresh(self, text: Sequence[int]) -> Any:
        """Logits (V,) after a text, computed by transformers from scratch without a cache."""
        with torch.inference_mode():
            return self._forward(self._forward.tokens(text), 1, use_cache=False).logits[0, -1]

    def exact(self, text: Sequence[int]) -> Any:
        """Logits (V,) like those of `fresh`, with the same weights but in float32; None where
        products with rounded weights cannot be computed in float32."""
        if self._has_rounded_weights:
            return None
        forward = exact_forward(self.model)
        with torch.inference_mode():
            return forward(forward.tokens(text), 1, use_cache=False).logits[0, -1]

    def in_float32(self) -> Self | None:
        """A copy that computes in float32 with the same code; None where rounded weights, or
        settings of torch, do not allow that."""
        other = deepcopy(self)
        other.model.float()
        return other if other.compute_dtype == "float32" else None

    @property
    def compute_dtype(self) -> str:
        """The coarsest dtype of arithmetic in a pass; products with rounded weights use bfloat16 on
        a CPU."""
        rounds = self._has_rounded_weights and self._forward.device.type == "cpu"
        return "bfloat16" if rounds else self._forward.compute_dtype

    @property
    def is_routed(self) -> bool:
        """Whether the model is a mixture of experts, where a near-tie can change the routing."""
        config = self.model.config.get_text_config(decoder=True)
        return any((getattr(config, name, 0) or 0) > 1 for name in EXPERT_COUNTS)

    @property
    def _shows_states(self) -> bool:
        """Whether a pass returns hidden states, one vector per token and layer."""
        with LOCK:
            if self.findings.shows_states is None:
                with torch.inference_mode():
                    ids = self._forward.tokens([0, 0])
                    done = self._forward(ids, 1, use_cache=False, output_hidden_states=True)
                shapes = [tuple(states.shape) for states in done.hidden_states or ()]
                expected = [(1, 2, self.hidden_size)] * (self.num_layers + 1)
                self.findings.shows_states = shapes == expected
            return self.findings.shows_states

    def _find_candidates(self) -> list[Candidate]:
        """The strategies that the model's layers and options allow, fastest first."""
        if self._asked not in ("auto", *get_args(Strategy)):
            choices = ("auto", *get_args(Strategy))
            raise InputError(
                explain("Unknown strategy.", repr(self._asked), f"Use one of {choices}.")
            )
        forward = self._forward
        kinds = layer_kinds(self.model) if forward.takes_positions else None
        candidates: list[Candidate] = []
        if kinds is not None and self._asked in ("auto", "crop"):
            refuse_attention(self.model)
            candidates.append(Candidate("crop", lambda f, n, size: CropRows(f, kinds, n, size)))
        if forward.cache_argument:
            candidates += [
                Candidate(
                    "snapshot",
                    lambda f, n, _: SnapshotRows(f, n),
                    "cannot share a pass between rows of different length, so rows are scored "
                    "one by one."
                    if kinds
                    else "",
                ),
                Candidate(
                    "snapshot",
                    lambda f, n, _: SnapshotRows(f, n, token_by_token=True),
                    "continues from its cache correctly only token by token, so scoring a draft "
                    "costs one pass per token.",
                ),
            ]
        recompute = "has no cache that reproduces a fresh pass, so each score recomputes the text."
        candidates.append(Candidate("recompute", lambda f, n, _: RecomputeRows(f, n), recompute))
        candidates = [
            candidate for candidate in candidates if self._asked in ("auto", candidate.strategy)
        ]
        if not candidates:
            raise UnsupportedError(
                explain(
                    f"The {self._asked} strategy does not fit the layers of this model.",
                    type(self.model).__name__,
                    'Use strategy="auto".',
                )
            )
        return candidates

    def _choice(self) -> Candidate:
        """The first candidate that reproduces a fresh pass; the trial runs once per model."""
        with LOCK:
            chosen: Candidate | None = self.findings.candidate
            if chosen is None:
                self.findings.candidate = chosen = self._try_candidates()
            return chosen

    def _try_candidates(self) -> Candidate:
        forward = self._tried()
        with torch.inference_mode():
            probe = Probe(forward, self.vocab_size)
            holding = (c for c in self._candidates if _holds(probe.agrees_with, c, forward))
            chosen = next(holding, None)
        if chosen is None:
            raise UnsupportedError(
                explain(
                    "The logits of a text change with what follows it, from pass to pass, or "
                    "with the cache, so a draft cannot be scored in one pass.",
                    f"{type(self.model).__name__} with strategy {self._asked!r}",
                    'Use a causal model and strategy="auto".',
                )
            )
        if self._asked == "auto" and chosen.cost:
            warn(f"{type(self.model).__name__} {chosen.cost}", UserWarning)
        return chosen

    def _tried(self) -> Forward:
        """The model to run trials on: the exact model that this one was rounded from while that
        exists, else this model itself."""
        exact = None if self.findings.model is None else self.findings.model()
        return self._forward if exact is None or exact is self.model else Forward(exact)


def _holds(test: Callable[[Any], bool], candidate: Candidate, forward: Forward) -> bool:
    try:
        return test(candidate.start(forward, 2, 16))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # models reject a foreign cache or mask with any exception
        return False


def refuse_unfit(model: Any) -> None:
    """Raise an error that names the reason, if a model is not a decoder-only language model that is
    ready for inference."""
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
                "The model is in training mode: dropout changes its output at every pass.",
                kind,
                "Call model.eval() first.",
            )
        )


def refuse_attention(model: Any) -> None:
    """Raise UnsupportedError for an attention implementation that ignores masks: rows of different
    length need their own."""
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


def max_context(config: Any) -> int | None:
    """The longest text, in tokens, whose scores can be trusted; None if there is no limit."""
    longest: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for table in (rope, *rope.values()):  # one table, or one for each kind of layer
        if isinstance(table, dict) and table.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            original = getattr(config, "original_max_position_embeddings", None)
            return table.get("original_max_position_embeddings") or original or longest
    return longest
