"""A model whose weights are packed from its files at every start, which takes about a second.

Nothing large is kept, then: the files are enough.  What little else the pass needs of a model, its
`Description`, can be made of a transformers model without weights, and kept for the next start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from forerun.lean.blocks import Raw
from forerun.lean.joining import Part, join
from forerun.lean.linear import Floats, Matrices
from forerun.lean.packed import Packed, Rows

EMBEDDING = "model.embed_tokens.weight"

Layer = tuple[Sequence[str], bool]
"""The names of the weights in one matrix of a pass, and whether their panels alternate."""


class Description(NamedTuple):
    """A model without its linear layers and its embedding."""

    packed: Packed  # of its matrices only the biases, one layer after the other
    layers: Sequence[Layer]  # in the order in which a pass uses them


def no_matrices(biases: Floats) -> Matrices:
    """Biases alone."""
    none = np.empty(0, np.int64)
    return Matrices(np.empty(0, np.uint8), biases, none, none, none, none != 0, none, None, None)


def with_weights(about: Description, raws: Mapping[str, Raw]) -> Packed:
    """The whole model.  raws: the weights by their names in transformers.

    Raises InputError for weights that are not finite, or a file that is too short.
    """
    weights, embedding = about.packed.weights, raws[EMBEDDING]
    biases, parts, at = weights.matrices.biases, [], 0
    for names, takes_turns in about.layers:
        pieces = [raws.get(name, embedding) for name in names]  # a head may be the embedding
        own = []
        for piece in pieces:
            own.append(biases[at : at + piece.shape[0]])
            at += piece.shape[0]
        parts.append(Part(pieces, own, takes_turns))
    rows = Rows(embedding.type, embedding.read(0, embedding.shape[0]))
    whole = weights._replace(matrices=join(parts))
    return about.packed._replace(weights=whole, rows=rows)
