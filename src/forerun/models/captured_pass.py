"""Short passes of a transformers model as CUDA graphs: one launch instead of a thousand.

A graph holds addresses and sizes, so a pass is padded to a whole number of blocks of keys, and its
inputs (tokens, positions, slots, the mask of a tree) are copied to fixed places first.  The mask of
a chain is made within the graph.  Only the passes of rounds are captured: prompts are long enough
to keep the device busy.  Norms and attention over grouped heads are replaced by quicker ones there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from forerun.base.capturing import captured
from forerun.base.errors import warn
from forerun.models.attention import LayerKind, attention_mask
from forerun.models.forward import Forward
from forerun.models.ragged_cache import Placement, RaggedCache

MOST_TOKENS = 32  # per row in a captured pass
KEYS = 256  # the unit by which the keys of a captured pass grow
MOST_GRAPHS = 16
WARM_UP = 2  # passes of a size before it is captured


class CapturedPasses:
    """The captured passes of one cache, by size.

    capture: whether to capture; if false, passes run as they would on a device without graphs.
    """

    def __init__(
        self, forward: Forward, cache: RaggedCache, kinds: list[LayerKind], *, capture: bool
    ) -> None:
        self.why_not = "" if capture else "graphs were not asked for"
        self._forward = forward
        self._cache = cache
        self._kinds = kinds
        self._made: dict[Any, _CapturedPass] = {}
        self._norms: dict[Any, Norm] | None = None  # fused norms; None: not looked for yet
        self._storage: Any = None  # the keys of the first layer at the time of capture

    def run(self, ids: Any, positions: Any, place: Placement, trees: Any) -> Any:
        """Logits (R, N, V) of a pass; the next pass of equal size overwrites them.

        ids, positions: (R, N).  place: its rows and slots are tensors.  trees: None for chains.
        """
        end = -(-place.end // KEYS) * KEYS
        self._grow(replace(place, end=end))
        mask = None
        if trees is not None:
            mask = attention_mask(self._kinds, positions, 0, end, self._forward.dtype, trees)
        is_run = isinstance(place.rows, slice)
        rows = (place.rows.start, place.rows.stop) if is_run else None
        key = (*ids.shape, end, rows, trees is None)
        if key not in self._made:
            if len(self._made) >= MOST_GRAPHS:
                self._made.clear()
            still = _still(ids, positions, replace(place, earliest=0, end=end), mask)
            self._made[key] = _CapturedPass(self._call, *still)
        made = self._made[key]
        made.fill(ids, positions, place, mask)
        if not self.why_not and made.graph is None and made.num_runs >= WARM_UP:
            self._capture(made)
        return made.run()

    def _call(self, ids: Any, positions: Any, place: Placement, mask: Any) -> Any:
        if mask is None:
            mask = attention_mask(self._kinds, positions, 0, place.end, self._forward.dtype)
        self._cache.placement = place
        model = self._forward.model
        if self._norms is None:
            self._norms = fused_norms(model)
        with taken(self._norms), grouped_attention(model):
            done = self._forward(
                ids, ids.shape[1], self._cache, position_ids=positions, attention_mask=mask
            )
        return done.logits

    def _capture(self, made: _CapturedPass) -> None:
        try:
            made.capture()
        except Exception as error:  # the model reads a number back to the host, or allocates
            self.why_not = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self._made.clear()
            warn(f"Passes are not captured as CUDA graphs: {self.why_not}. The text is the same.")

    def _grow(self, place: Placement) -> None:
        """Make room before a graph is captured, and forget graphs of storage that is gone."""
        for layer in self._cache.layers:
            if layer.is_initialized and not layer._has_room(place.end):
                self._cache.placement = place
                layer.lazy_initialization(layer.keys, layer.values)
        first = self._cache.layers[0]
        storage = first.keys if first.is_initialized else None
        if storage is not self._storage:
            self._made.clear()
            self._storage = storage


class _CapturedPass:
    """A pass of one size, with its inputs at fixed addresses."""

    def __init__(
        self, call: Callable[..., Any], ids: Any, positions: Any, place: Placement, mask: Any
    ) -> None:
        self._call = call
        self._ids, self._positions, self._place = ids, positions, place
        self._mask = mask  # of trees; None for chains
        self._logits: Any = None
        self.graph: Any = None
        self.num_runs = 0

    def fill(self, ids: Any, positions: Any, place: Placement, mask: Any) -> None:
        """Copy the inputs of a pass to the fixed addresses."""
        self._ids.copy_(ids)
        self._positions.copy_(positions)
        for name in ("rows", "row_index", "slots"):
            still = getattr(self._place, name)
            if isinstance(still, torch.Tensor):
                still.copy_(getattr(place, name))
        for kind, part in _parts(self._mask).items():
            part.copy_(_parts(mask)[kind])

    def run(self) -> Any:
        """Logits (R, N, V) of the inputs that `fill` copied."""
        self.num_runs += 1
        if self.graph is None:
            return self._call(self._ids, self._positions, self._place, self._mask)
        self.graph.replay()
        return self._logits

    def capture(self) -> None:
        """Capture the pass as a graph."""
        inputs = self._ids, self._positions, self._place, self._mask
        self.graph, self._logits = captured(lambda: self._call(*inputs), self._ids.device)


def _still(ids: Any, positions: Any, place: Placement, mask: Any) -> tuple[Any, Any, Any, Any]:
    """Copies of a pass's inputs, which a captured graph can read at fixed addresses."""
    tensors = {
        name: value.clone()
        for name in ("rows", "row_index", "slots")
        if isinstance(value := getattr(place, name), torch.Tensor)
    }
    masks = {kind: part.clone() for kind, part in _parts(mask).items()}
    still_mask = masks if isinstance(mask, dict) else masks.get("")
    return ids.clone(), positions.clone(), replace(place, **tensors), still_mask


def _parts(mask: Any) -> dict[str, Any]:
    """The masks by kind of layer; empty for a chain."""
    if mask is None:
        return {}
    return mask if isinstance(mask, dict) else {"": mask}


NAME = "forerun_grouped"
USUAL = "sdpa"  # the name in transformers of the attention that this replaces
EXTRAS = ("softcap", "position_bias", "cache", "s_aux")  # arguments that change a result


def attend(
    module: Any,
    query: Any,  # (R, H, N, head size)
    key: Any,  # (R, KV, keys, head size)
    value: Any,
    attention_mask: Any,  # (R, 1, N, keys), additive, or None
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Compute attention with all query heads of a group in one product, (R, N, H, head size)."""
    num_rows, num_heads, num_tokens, head_size = query.shape
    num_groups = key.shape[1]
    is_plain = attention_mask is not None and attention_mask.shape[1] == 1
    is_plain = is_plain and all(kwargs.get(name) is None for name in EXTRAS)
    if num_groups == num_heads or not is_plain:
        result: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    members = num_heads // num_groups
    mask = attention_mask[:, :, None].expand(-1, -1, members, -1, -1).flatten(2, 3)
    grouped = query.reshape(num_rows, num_groups, members * num_tokens, head_size)
    mixed = scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    mixed = mixed.reshape(num_rows, num_heads, num_tokens, head_size)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """Within the context, a model that uses torch's fused attention uses `attend` instead."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    if before == USUAL:
        config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # dtypes in which norms may be fused
NUM_ROWS = 8  # rows of input for which results are compared
SIZES = (-4, 2)  # magnitudes of these rows as powers of ten: the smallest show where epsilon is
MOST_ULPS = 4  # the largest difference of a float32 number, as the order of the sum is different
MOST_NARROW_ULPS = 2  # the largest difference of a 16-bit number: one rounding the other way
EQUAL = 0.98  # the share of 16-bit numbers that must be equal

Norm = Callable[[Any], Any]


def _rounded_first(norm: Any, eps: float) -> Norm:
    """The norm of Llama, Mistral, Qwen and Phi, which is rounded before it is multiplied by the
    weight."""
    return lambda x: norm.weight * rms_norm(x, norm.weight.shape, None, eps)


def _rounded_last(norm: Any, eps: float) -> Norm:
    """The norm of OLMo 2, which is rounded after it was multiplied by the weight."""
    return lambda x: (norm.weight * rms_norm(x.float(), norm.weight.shape, None, eps)).to(x.dtype)


def _around_one(norm: Any, eps: float) -> Norm:
    """The norm of Gemma, whose weight is stored minus 1, and which is rounded last."""

    def fused(x: Any) -> Any:
        result = rms_norm(x.float(), norm.weight.shape, None, eps)
        return (result * (1.0 + norm.weight.float())).to(x.dtype)

    return fused


FORMULAS = (_rounded_first, _rounded_last, _around_one)


def fused_norms(model: Any) -> dict[Any, Norm]:
    """For each norm of a model that a formula reproduces, the function that computes it."""
    norms = [
        module
        for module in model.modules()
        if type(module).__name__.endswith("RMSNorm") and "forward" not in vars(module)
    ]
    with torch.no_grad():
        pairs = [(norm, _fused(norm)) for norm in norms]
    return {norm: fused for norm, fused in pairs if fused is not None}


@contextmanager
def taken(norms: dict[Any, Norm]) -> Iterator[None]:
    """Within the context, compute the given norms by their fused functions."""
    for module, fused in norms.items():
        module.forward = fused
    try:
        yield
    finally:
        for module in norms:
            del module.forward


def _fused(norm: Any) -> Norm | None:
    """The first formula that reproduces a norm on random rows; None if none does."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = getattr(norm, "weight", None)
    if not isinstance(eps, float) or weight is None or weight.dim() != 1:
        return None
    if weight.dtype not in DTYPES or len(signature(norm.forward).parameters) != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((NUM_ROWS, len(weight)), generator=generator)
    rows *= torch.logspace(*SIZES, NUM_ROWS)[:, None]
    rows = rows.to(weight.device, weight.dtype)
    expected = norm(rows)
    made = (formula(norm, eps) for formula in FORMULAS)
    chosen = next((fused for fused in made if _agree(fused(rows), expected)), None)
    return None if chosen is None else _for_its_dtype(norm, chosen)


def _for_its_dtype(norm: Any, fused: Norm) -> Norm:
    """A function that uses `fused` for rows of the weight's dtype, for which results were compared,
    and the module itself for others."""
    usual = norm.forward
    return lambda x: fused(x) if x.dtype == norm.weight.dtype else usual(x)


def _agree(got: Any, expected: Any) -> bool:
    """Whether two results are equal up to the differences that are allowed for their dtype."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    limits = torch.finfo(expected.dtype)
    is_narrow = expected.dtype.itemsize == 2
    got, expected = got.double(), expected.double()
    ulp = limits.eps * expected.abs().clamp(min=limits.tiny)
    most = MOST_NARROW_ULPS if is_narrow else MOST_ULPS
    is_near = bool(((got - expected).abs() <= most * ulp).all())
    return is_near and (not is_narrow or float((got == expected).double().mean()) >= EQUAL)
