"""The first layers of a model on the lean pass, over the rows of the whole model."""

from __future__ import annotations

import numpy as np

from forerun.lean.attention import Cache
from forerun.lean.forward import Weights
from forerun.lean.linear import Matrices
from forerun.lean.rows import LeanRows
from forerun.models.feed import Feed

PER_LAYER = 4  # matrices


class ShallowRows(LeanRows):
    """The lengths and the cache of other rows under fewer layers, with scores of its own."""

    def __init__(self, whole: LeanRows, num_layers: int) -> None:
        self._whole = whole
        vars(self).update({name: value for name, value in vars(whole).items() if name != "_cache"})
        self._weights = first_layers(whole._weights, num_layers)
        self._fed = [Feed()] * len(self.lengths)
        self.layers, self._history = (), None

    @property
    def _cache(self) -> Cache:
        """Whoever needs more room makes it for both."""
        return self._whole._cache

    @_cache.setter
    def _cache(self, grown: Cache) -> None:
        self._whole._cache = grown


def first_layers(weights: Weights, num_layers: int) -> Weights:
    """The same matrices in the same memory, those of the later layers left out."""
    m = weights.matrices
    used = [*range(PER_LAYER * num_layers), len(m.depth) - 1]  # the last is the head
    tables = (m.format, m.depth, m.panel_at, m.panel_bytes, m.output_at)
    return weights._replace(
        matrices=Matrices(m.panels, m.biases, *(table[used] for table in tables)),
        norms=np.concatenate([weights.norms[: 2 * num_layers], weights.norms[-1:]]),
        head_norms=weights.head_norms[:num_layers],
    )
