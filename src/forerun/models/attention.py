"""Determines which keys a token may attend to: the layer kinds of a model and their masks.

Only the mask depends on sliding windows, so every layer can store all of its keys and be cropped.
Only the mask distinguishes trees from chains.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


@dataclass(frozen=True)
class LayerKind:
    """Layers that see the same keys; `name` is what transformers calls them."""

    name: str
    window: int | None  # keys seen, the token's own included; None: all of them

    def first_visible(self, earliest: int) -> int:
        """The first key any token of a pass can see, if none stands before position `earliest`."""
        return 0 if self.window is None else max(0, earliest - self.window + 1)


@dataclass(frozen=True)
class Branches:
    """The trees of a pass.  Nodes lie in consecutive slots, but their positions follow from their
    depth, and a node is seen only by itself and its descendants."""

    first: Any  # (R, 1): the slot of each row's first node; past all keys for a chain
    positions: Any  # (R, M): positions of the nodes in the text
    is_seen: Any  # (R, N, M): whether a scored token is the node or a descendant of it


FULL, SLIDING = "full_attention", "sliding_attention"


ONE_MASK = ("mistral",)
"""Architectures whose code masks all layers alike, even if a configuration has a kind per layer."""


def layer_kinds(model: Any) -> list[LayerKind] | None:
    """One kind per cached layer, or None if some layer keeps more than keys and values.

    The kinds are taken from the cache that transformers itself would build, because configurations
    name things less consistently.  A configuration may name a window that the model's code does
    not implement; such a model sees its whole text.
    """
    config, knows_windows = model.config, _knows_windows(model)
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    kinds = []
    for layer in layers:
        is_sliding = type(layer) is DynamicSlidingWindowLayer
        if type(layer) is DynamicLayer or (is_sliding and not knows_windows):
            kinds.append(LayerKind(FULL, None))
        elif is_sliding:
            kinds.append(LayerKind(SLIDING, layer.sliding_window))
        else:
            return None
    names = getattr(config.get_text_config(decoder=True), "layer_types", None) or [FULL, SLIDING]
    is_known = {FULL, SLIDING}.issuperset(names)  # chunked layers use the sliding cache class
    most = 1 if config.model_type in ONE_MASK else len({kind.name for kind in kinds})
    return kinds if kinds and is_known and len(set(kinds)) == most else None


def _knows_windows(model: Any) -> bool:
    """Whether the source code of a model mentions windows; true where it cannot be read."""
    return any(map(_mentions_windows, {type(module).__module__ for module in model.modules()}))


@cache
def _mentions_windows(module: str) -> bool:
    """Whether the source code of a module mentions windows; true where it cannot be read."""
    if module.startswith("torch."):
        return False
    try:
        return not module.startswith("transformers.") or "sliding" in getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return True


def attention_mask(
    kinds: list[LayerKind],  # the distinct ones
    positions: Any,  # (R, N): the position of each scored token in its row
    earliest: int,  # the smallest position
    end: int,  # one past the last key that is read
    dtype: Any,
    branches: Branches | None = None,
) -> Any:
    """The additive mask (R, 1, N, keys) of a pass; a dict by kind if the model has several kinds.

    Eager attention needs an additive mask, and fused attention would convert a boolean one again
    in every layer.
    """
    masks = {}
    at = positions[:, :, None]  # (R, N, 1)
    for kind in kinds:
        slots = torch.arange(kind.first_visible(earliest), end, device=positions.device)  # (keys,)
        keys, is_hidden = slots, slots > at  # positions of the keys; (R, N, keys)
        if branches is not None:
            keys, is_hidden = _among_branches(slots, is_hidden, branches)
        if kind.window is not None:
            is_hidden |= keys <= at - kind.window
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=positions.device)
        mask.masked_fill_(is_hidden, torch.finfo(dtype).min)
        masks[kind.name] = mask[:, None]
    return masks if len(masks) > 1 else next(iter(masks.values()))


def _among_branches(slots: Any, is_hidden: Any, branches: Branches) -> tuple[Any, Any]:
    """The positions of keys (R, 1, keys), and whether each is hidden from each scored token
    (R, N, keys), where trees are among them."""
    node = slots - branches.first  # (R, keys): the node in each slot, negative for text
    in_tree = node >= 0
    most = branches.positions.shape[1]
    index = node.clamp(0, most - 1)
    keys = torch.where(in_tree, branches.positions.gather(1, index), slots)
    is_seen = branches.is_seen.gather(2, index[:, None].expand(-1, is_hidden.shape[1], -1))
    is_seen &= (node < most)[:, None]
    return keys[:, None], torch.where(in_tree[:, None], ~is_seen, is_hidden)
