"""Packs a model's weights from its files at every start, which takes about a second.

So nothing large has to be kept on disk beside the files. Everything else that the pass needs, the
model's `Description`, is made from a transformers model without weights, and can be kept for the
next start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from forerun.lean.blocks import Raw
from forerun.lean.joining import Part, damaged, join, values_of
from forerun.lean.linear import Floats, Matrices
from forerun.lean.packed import Packed, Rows
from forerun.lean.storage import rounded

EMBEDDING = "model.embed_tokens.weight"

Layer = tuple[Sequence[str], bool]
"""The names of the weights that make one matrix of a pass, and whether their panels alternate in
it."""


class Description(NamedTuple):
    """A model without its linear layers and its embedding."""

    packed: Packed  # of its matrices only the biases, one layer after the other
    layers: Sequence[Layer]  # in the order in which a pass uses them


def no_matrices(biases: Floats) -> Matrices:
    """Make `Matrices` with these biases and without weights."""
    none = np.empty(0, np.int64)
    return Matrices(np.empty(0, np.uint8), biases, none, none, none, none != 0, none, None, None)


def with_weights(
    about: Description, raws: Mapping[str, Raw], *, is_rounded: bool = False
) -> Packed:
    """Complete a description with its weights. raws: the weights by their names in transformers.

    is_rounded: linear weights are rounded to 8 bits. Raises InputError for weights that are not
    finite, or a file that is too short.
    """
    weights, embedding = about.packed.weights, raws[EMBEDDING]
    rows = Rows(embedding)
    names = {name for layer, _ in about.layers for name in layer}
    if names <= raws.keys() and not rows.are_finite():  # else the head is the embedding
        raise damaged(embedding)
    matrices = join(_parts(about, raws, is_rounded))
    facts = about.packed.facts._replace(is_rounded=is_rounded)
    return about.packed._replace(
        weights=weights._replace(matrices=matrices), facts=facts, rows=rows
    )


def _parts(about: Description, raws: Mapping[str, Raw], is_rounded: bool) -> Iterator[Part]:
    """Yield the matrices of a pass, in order. A head without its own weights uses the embedding."""
    biases, at = about.packed.weights.matrices.biases, 0
    for names, takes_turns in about.layers:
        pieces = [raws.get(name, raws[EMBEDDING]) for name in names]
        ends = np.cumsum([at, *(piece.shape[0] for piece in pieces)]).tolist()
        own = [biases[begin:end] for begin, end in pairwise(ends)]
        at = ends[-1]
        yield Part(list(map(_rounded, pieces)) if is_rounded else pieces, own, takes_turns)


def _rounded(piece: Raw) -> Floats:
    return rounded(values_of(piece))
