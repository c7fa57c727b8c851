"""A model as the lean pass runs it: enough to answer without torch or the transformers model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from forerun.lean.formats import Format
from forerun.lean.forward import Weights
from forerun.lean.linear import Floats, Matrices
from forerun.lean.shape import LANES


class Rotary(NamedTuple):
    """Rotary tables: angles that grow with the position, by which queries and keys are turned."""

    frequencies: Floats  # (tables, head size / 2)
    factors: Floats  # (tables,)

    def angles(self, begin: int, end: int) -> tuple[Floats, Floats]:
        """Cosines and sines of positions `begin` to `end`, times the factors: two arrays (tables,
        end - begin, head size / 2), rounded to float32 once."""
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


WORDS = {
    Format.FLOAT32: "float32",
    Format.BFLOAT16: "bfloat16",
    Format.FLOAT16: "float16",
    Format.BLOCK8: "8-bit",
    Format.BLOCK6K: "6-bit",
    Format.BLOCK5K: "5-bit",
    Format.BLOCK4: "4-bit",
    Format.BLOCK4K: "4-bit",
}


class Facts(NamedTuple):
    """The properties of a model that can be read without loading it."""

    kind: str  # the name of its architecture in transformers
    num_parameters: int
    vocab_size: int
    max_context: int
    hidden_size: int
    num_layers: int
    endings: list[int]  # tokens with which it ends a text
    defaults: dict[str, float]  # its own sampling options
    is_rounded: bool  # the weights were rounded to 8 bits


class Packed(NamedTuple):
    """Everything that the lean pass needs of a model."""

    weights: Weights
    rotary: Rotary
    facts: Facts


def storage_name(m: Matrices) -> str:
    """The format of most of the weights, in words."""
    panels = np.diff(m.output_at // LANES, append=len(m.format))  # of each matrix
    counts = np.bincount(m.format, weights=np.repeat(m.depth, panels))
    return WORDS[Format(int(counts.argmax()))]
