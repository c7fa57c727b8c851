"""A model as the lean pass runs it: enough to answer without torch or the transformers model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forerun.lean.formats import Format
from forerun.lean.forward import Weights
from forerun.lean.linear import Matrices
from forerun.lean.rotary import Rotary
from forerun.lean.shape import LANES

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
    """What is told of a model without looking into it."""

    kind: str  # what transformers calls its architecture
    num_parameters: int
    vocab_size: int
    max_context: int
    hidden_size: int
    num_layers: int
    endings: list[int]  # tokens with which it ends a text
    defaults: dict[str, float]  # sampling options that it states for itself
    is_rounded: bool  # to 8 bits


class Packed(NamedTuple):
    """Everything."""

    weights: Weights
    rotary: Rotary
    facts: Facts


def storage_name(m: Matrices) -> str:
    """How most of the weights are kept."""
    panels = np.diff(m.output_at // LANES, append=len(m.format))  # of each matrix
    counts = np.bincount(m.format, weights=np.repeat(m.depth, panels))
    return WORDS[Format(int(counts.argmax()))]
