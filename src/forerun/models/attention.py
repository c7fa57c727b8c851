"""Which keys a token may attend to: the layer kinds of a model and their masks.

The mask is the only place that knows a sliding window, so that every layer can store all of its
keys and be cropped. It is also the only place a draft tree would have to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


@dataclass(frozen=True)
class LayerKind:
    """Layers that see the same keys; `name` is what transformers calls them."""

    name: str
    window: int | None  # keys seen, the token's own included; None: all of them

    def first_visible(self, shortest: int) -> int:
        """The first key any token of a pass can see, if every row stores `shortest` or more."""
        return 0 if self.window is None else max(0, shortest - self.window + 1)


FULL, SLIDING = "full_attention", "sliding_attention"


def layer_kinds(config: Any) -> list[LayerKind] | None:
    """One kind per cached layer, or None if some layer keeps more than keys and values.

    The answer is read off the cache that transformers itself would build, because that is what
    the layers will write to; configurations name things less consistently.
    """
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    kinds = []
    for layer in layers:
        if type(layer) is DynamicLayer:
            kinds.append(LayerKind(FULL, None))
        elif type(layer) is DynamicSlidingWindowLayer:
            kinds.append(LayerKind(SLIDING, layer.sliding_window))
        else:
            return None
    names = getattr(config.get_text_config(decoder=True), "layer_types", None) or [FULL, SLIDING]
    is_known = {FULL, SLIDING}.issuperset(names)  # chunked layers use the sliding cache class
    return kinds if kinds and is_known and len(set(kinds)) == len({k.name for k in kinds}) else None


def attention_mask(
    kinds: list[LayerKind],  # the distinct ones
    positions: Any,  # (R, N): where each scored token stands in its row
    shortest: int,  # tokens stored in the shortest row
    end: int,  # one past the last key that is read
    dtype: Any,
) -> Any:
    """The additive mask (R, 1, N, keys) of a pass: a dict by kind if the model has several.

    Additive rather than boolean because eager attention needs it so, and fused attention would
    otherwise convert it again in every layer.
    """
    masks = {}
    for kind in kinds:
        keys = torch.arange(kind.first_visible(shortest), end, device=positions.device)  # (keys,)
        is_hidden = keys > positions[:, None, :, None]  # (R, 1, N, keys)
        if kind.window is not None:
            is_hidden |= keys <= positions[:, None, :, None] - kind.window
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=positions.device)
        masks[kind.name] = mask.masked_fill_(is_hidden, torch.finfo(dtype).min)
    return masks if len(masks) > 1 else next(iter(masks.values()))
