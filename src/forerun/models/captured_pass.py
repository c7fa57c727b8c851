"""Short passes of a transformers model as CUDA graphs: one launch instead of a thousand.

A graph holds addresses and sizes, so a pass is padded to a whole number of blocks of keys, and its
inputs (tokens, positions, slots, the mask of a tree) are copied to fixed places first.  The mask of
a chain is made within the graph.  Only the passes of rounds are captured: prompts are long enough
to keep the device busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from forerun.base.capturing import captured
from forerun.base.errors import warn
from forerun.models.attention import LayerKind, attention_mask
from forerun.models.forward import Forward
from forerun.models.fused_norms import Norm, fused_norms, taken
from forerun.models.grouped_attention import grouped_attention
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
    """Copies of a pass's inputs, whose addresses never change."""
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
