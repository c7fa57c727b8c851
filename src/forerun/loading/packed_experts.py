"""Loads experts whose matrices have few bits; all experts of a layer are stacked in one matrix.

A checkpoint stores them as a stack (`experts.gate_up_proj_blocks`, gpt-oss), or each under its own
name (`experts.7.gate_proj.weight`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from forerun.loading.stored_formats import Format, Stored, unserved
from forerun.models.families import FAMILIES, router
from forerun.models.packed import Packed, PackedStack, stacked

MATRICES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The stacked matrices of a layer, and for each the names of the matrices of one expert."""


def fill_experts(
    model: Any, shards: Any, stored_as: Format, dtype: Any, keeps_bits: bool
) -> int:  # fmt: skip
    """Read the few-bit experts of a model. Returns the number of stacks.

    shards: `find` gives a tensor by its name, or None; `in` tells whether there is one.
    """
    family, found = FAMILIES[type(model).__name__], 0
    for number, layer in enumerate(model.model.layers):
        if not hasattr(layer.mlp, "experts"):
            continue
        place, owner = f"model.layers.{number}.mlp", layer.mlp.experts
        _check_router(layer.mlp, place, shards, stored_as)
        for name in MATRICES:
            like = getattr(owner, name)
            count, rows, depth = like.mT.shape if family.takes_turns else like.shape
            matrices = list(_read(f"{place}.experts", name, (count, rows, depth), shards,
                                  stored_as, dtype))  # fmt: skip
            if not matrices:
                continue
            delattr(owner, name)
            if keeps_bits:
                setattr(owner, name, PackedStack(_joined(place, matrices), count,
                                                 family.takes_turns))  # fmt: skip
            else:
                whole = torch.cat([matrix.written_out() for matrix in matrices])
                whole = whole.view(count, rows, depth)
                whole = whole.mT.contiguous() if family.takes_turns else whole
                setattr(owner, name, torch.nn.Parameter(whole, requires_grad=False))
            found += 1
    if found and keeps_bits:
        model.set_experts_implementation("eager")  # which asks for one expert at a time
    return found


def _check_router(mlp: Any, place: str, shards: Any, stored_as: Format) -> None:
    names = [name for name, module in mlp.named_children() if module is router(mlp)]
    if any(f"{place}.{name}.{part}" in shards for name in names for part in stored_as.parts[1:]):
        raise unserved(f"a router of few bits ({place})", "routers in 16 bits")


def _read(
    place: str, name: str, shape: tuple[int, int, int], shards: Any, stored_as: Format, dtype: Any
) -> Iterator[Packed]:
    """Yield the matrices of a stack with this shape (E, out, in), in order; none if it is stored in
    16 bits."""
    count, rows, depth = shape
    whole = f"{place}.{name}"
    if f"{whole}_{stored_as.parts[0]}" in shards:
        tables = {part: shards.find(f"{whole}_{part}") for part in stored_as.parts}
        for part, table in tables.items():
            if table is not None:
                of_all = Stored(whole, (count * rows, depth), dtype, tables.get)
                of_all.check(f"{name}_{part}", tuple(table.shape[:1]), (count,))
        for expert in range(count):
            one = {part: None if t is None else t[expert] for part, t in tables.items()}
            yield stored_as.read(Stored(f"{whole}[{expert}]", (rows, depth), dtype, one.get))
    elif whole not in shards:
        parts = MATRICES[name]
        for expert in range(count):
            for part in parts:
                own = f"{place}.{expert}.{part}"
                if not any(f"{own}.{each}" in shards for each in stored_as.parts[1:]):
                    raise unserved(f"experts without few bits beside others ({own})",
                                   "experts that all have few bits")  # fmt: skip
                find = partial(_find, shards, own)
                yield stored_as.read(Stored(own, (rows // len(parts), depth), dtype, find))


def _find(shards: Any, name: str, part: str) -> Any:
    return shards.find(f"{name}.{part}")


def _joined(place: str, matrices: Sequence[Packed]) -> Packed:
    """Matrices stacked into one; they must have the same format, except for the precision of their
    scales."""
    if len({matrix.scales.dtype for matrix in matrices}) > 1:
        for matrix in matrices:
            matrix.scales = matrix.scales.float()
    if not all(matrix.is_alike(matrices[0]) for matrix in matrices):
        raise unserved(f"experts of several kinds ({place})", "experts that are all alike")
    return stacked(matrices)
