"""Rotary tables: the angles by which queries and keys are turned."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from forerun.lean.linear import Floats


class Rotary(NamedTuple):
    """Angles that grow with the position: cosines and sines of them, times a factor."""

    frequencies: Floats  # (tables, head size / 2)
    factors: Floats  # (tables,)

    def angles(self, begin: int, end: int) -> tuple[Floats, Floats]:
        """Cosines and sines (tables, end - begin, head size / 2), each the nearest float32."""
        positions = np.arange(begin, end, dtype=np.float32)
        turns = (positions[:, None] * self.frequencies[:, None]).astype(np.float64)
        factors = self.factors[:, None, None]
        cos, sin = np.cos(turns) * factors, np.sin(turns) * factors
        return cos.astype(np.float32), sin.astype(np.float32)


def rotary_of(model: Any) -> Rotary:
    """The tables of a transformers model: one, or one for each kind of layers."""
    rotary = model.model.rotary_emb
    names = [f"{kind}_" if kind else "" for kind in table_kinds(model)]
    frequencies = [getattr(rotary, f"{name}inv_freq").float().numpy() for name in names]
    factors = [getattr(rotary, f"{name}attention_scaling") for name in names]
    return Rotary(np.stack(frequencies), np.array(factors, np.float32))


def table_kinds(model: Any) -> list[str]:
    """The kinds of layers that have a table of their own; [""] if all share one."""
    return list(getattr(model.model.rotary_emb, "layer_types", [""]))


def tables(model: Any) -> Any:
    """(layers,): which table the queries and keys of each layer are turned by."""
    kinds = table_kinds(model)
    if kinds == [""]:
        return np.zeros(len(model.model.layers), np.int64)
    return np.array([kinds.index(kind) for kind in model.config.layer_types])
