"""The first layers of a model on the lean pass, over the rows of the whole model."""

from __future__ import annotations

import numpy as np

from forerun.lean.forward import Weights
from forerun.lean.rows import LeanRows
from forerun.models.feed import Feed

PER_LAYER = 4  # matrices


class ShallowRows(LeanRows):
    """The lengths and pages of other rows, scored by fewer layers.

    What it has scored since the last commit is kept apart from what the whole model has.
    """

    def __init__(self, whole: LeanRows, num_layers: int) -> None:
        vars(self).update(vars(whole))
        self._weights = first_layers(whole._weights, num_layers)
        self._fed = [Feed()] * len(self.lengths)
        self.layers, self._history = (), None


def first_layers(weights: Weights, num_layers: int) -> Weights:
    """The same matrices in the same memory, those of the later layers left out."""
    m = weights.matrices
    used = [*range(PER_LAYER * num_layers), len(m.depth) - 1]  # the last is the head
    return weights._replace(
        matrices=m._replace(
            depth=m.depth[used], takes_limbs=m.takes_limbs[used], output_at=m.output_at[used]
        ),
        norms=np.concatenate([weights.norms[: 2 * num_layers], weights.norms[-1:]]),
        post_norms=weights.post_norms[: 2 * num_layers],
        head_norms=weights.head_norms[:num_layers],
        windows=weights.windows[:num_layers],
        tables=weights.tables[:num_layers],
    )
