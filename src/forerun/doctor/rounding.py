"""How far the logits of two passes over one text may differ by float arithmetic alone.

A pass is a chain of sums. Each rounding moves a number by about eps of its size, in a random
direction, so errors add up like a random walk: n successive roundings move the result by about eps
* sqrt(n). A layer that computes in float32 rounds after every addition of a sum as long as the
model is wide, so n is layers * width. For bfloat16, float16 and TF32, hardware adds products in
float32 and rounds only the result, so n is the number of layers. Errors are relative to the numbers
in which they arise; for logits that is the largest |logit| among the tokens that matter.

    bound = MARGIN * eps * sqrt(n) * largest |logit|

Measured on a CPU, in passes of one to nine tokens, alone, with a cache and in a batch: random
Llamas of 2 to 24 layers, 32 to 256 wide, stayed below 1.6 times the formula without MARGIN (24
layers of 256 in float32 only), SmolLM2-135M in float32 below a fifth of it. A wrong position, mask,
row or token moves logits by about their whole spread, which in float32 is hundreds of times the
bound. In 16 bits the bound could hide a mix-up with a fifth of another row, so there the difference
is measured: how far fresh passes, without a cache or a draft, are from the same weights in float32.
No pass under suspicion takes part in this.

    bound = MEASURED_MARGIN * the largest distance at the last PLACES positions
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from forerun.base.arrays import HostArray, to_numpy

MARGIN = 4.0
MEASURED_MARGIN, PLACES = 4.0, 8
MATTERING = 50.0
"""A token whose logit is this far below the highest has a probability under e**-50 and can be
ignored, because nothing chooses it."""
USUAL_LAYERS, USUAL_WIDTH = 32, 4096  # of a model that does not tell
ROUTED_SHARE = 0.15
"""The error that is assumed when a near-tie sends a token to another expert, as a share of the
spread of the logits."""
EPS = {
    # Many float64 models compute parts in float32, and functions may do so without telling.
    "float64": 2.0**-23,
    "float32": 2.0**-23,
    "tfloat32": 2.0**-10,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
SUMMED_AS_THEY_ARE = ("float32", "float64")


class Rounding(NamedTuple):
    """The difference of logits that float arithmetic explains at one position."""

    dtype: str
    bound: float
    in_float32: float  # what it would explain if the model computed in float32

    @property
    def is_coarse(self) -> bool:
        """Whether the model computes in fewer bits than float32."""
        return self.dtype not in SUMMED_AS_THEY_ARE


def rounding(model: Any, logits: HostArray, dtype: str, text: Sequence[int] = ()) -> Rounding:
    """The largest difference of logits (V,) that rounding explains for this model.

    dtype: of the logits, unless the model states what it computes in (`compute_dtype`).
    text: the text before the position, on which the difference is measured.
    """
    name = str(getattr(model, "compute_dtype", dtype)).rpartition(".")[2]
    layers = getattr(model, "num_layers", 0) or USUAL_LAYERS
    width = getattr(model, "hidden_size", 0) or USUAL_WIDTH
    mattering = logits[matters(logits)]
    scale = MARGIN * float(np.max(np.abs(mattering), initial=0.0))
    fine = scale * EPS["float32"] * (layers * width) ** 0.5
    bound = fine if name in SUMMED_AS_THEY_ARE else scale * EPS.get(name, 2.0**-7) * layers**0.5
    if name not in SUMMED_AS_THEY_ARE and (seen := measured(model, text)) is not None:
        bound = seen
    if getattr(model, "is_routed", False):
        bound = max(bound, ROUTED_SHARE * float(np.std(mattering)))
    return Rounding(name, bound, fine)


def measured(model: Any, text: Sequence[int]) -> float | None:
    """A bound measured with fresh passes at the end of a text; None if the model cannot also make
    these in float32 (`exact`)."""
    if not text:
        return None
    farthest = 0.0
    for end in range(max(1, len(text) - PLACES + 1), len(text) + 1):
        exact = exact_row(model, text[:end])
        if exact is None:
            return None
        rows = (to_numpy(row).astype(np.float64) for row in (exact, model.fresh(text[:end])))
        farthest = max(farthest, distance(*rows))
    return MEASURED_MARGIN * farthest


def exact_row(model: Any, text: Sequence[int]) -> Any:
    """The logits (V,) after a text computed in float32, for a model in 16 bits; None if that is
    impossible or unnecessary."""
    dtype = str(getattr(model, "compute_dtype", "float32"))
    return None if dtype in SUMMED_AS_THEY_ARE or not hasattr(model, "exact") else model.exact(text)


def matters(logits: HostArray) -> HostArray:
    """Which tokens (V,) are likely enough that sampling could choose them."""
    with np.errstate(invalid="ignore"):  # all impossible: none
        is_close: HostArray = logits > np.max(logits, initial=-np.inf) - MATTERING
    return is_close


def distance(one: HostArray, other: HostArray) -> float:
    """The largest difference of two rows (V,) among tokens that matter in either of them.

    It is infinite if a token is possible in only one of them, or if there is a NaN.
    """
    if np.isnan(one).any() or np.isnan(other).any():
        return float("inf")
    either = matters(one) | matters(other)
    return float(np.max(np.abs(one[either] - other[either]), initial=0.0))
