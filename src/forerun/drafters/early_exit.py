"""A drafter that uses the first layers of the target, with the target's head and cache.

Fewer layers are cheaper and agree less often with the whole target. To choose their number, both
read one sample text: the share of positions where they prefer the same token, and the share of the
layers that run, give the speed-up by the closed form of `forerun.theory`.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from forerun.base.arrays import to_numpy
from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.from_target import FromTarget
from forerun.models.base import LanguageModel, identity
from forerun.theory import best_draft_length
from forerun.trees.sibling_laws import Children

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)  # of the layers, tried in this order
LONGEST = 8  # guesses in a row that are considered
MOST_TOKENS = 96  # of the sample
SAMPLE = (
    "The old bridge was built in three years, and for most of that time nobody in the town "
    "believed that it would stand. When the river rose in the spring of the second year, the "
    "workers carried stones all night. def area(width, height):\n    return width * height\n"
)


def best_depth(target: Any) -> int:
    """The number of first layers with the best predicted speed-up; the fewest on a tie."""
    text = _sample(target)
    expected = _choices(target, target.start(1, len(text)), text)
    depths = sorted({max(1, round(share * target.num_layers)) for share in SHARES})
    forecasts: dict[int, float] = {}
    for depth in depths:
        rows = target.start(1, len(text))
        shallow = target.first_layers(rows, depth)
        agreement = float((_choices(shallow, shallow.start(1), text) == expected).mean())
        cost = depth / target.num_layers
        forecasts[depth] = best_draft_length(agreement, cost, max_draft_length=LONGEST).speedup
    return max(forecasts, key=lambda depth: forecasts[depth])


def _choices(model: Any, rows: Any, text: list[int]) -> NDArray[np.int64]:
    """The likeliest token after each token of the text, (N,)."""
    logits = to_numpy(model.score(rows, [0], [text], [len(text)]))[0]  # (N, V)
    choices: NDArray[np.int64] = logits.argmax(-1)
    return choices


def _sample(target: Any) -> list[int]:
    """A sample text in the target's tokens; random tokens where there is no tokenizer."""
    tokenizer = getattr(target, "tokenizer", None)
    most = min(MOST_TOKENS, target.max_context or MOST_TOKENS)
    if tokenizer is None:
        rng = np.random.default_rng(0)
        return [int(token) for token in rng.integers(target.vocab_size, size=most)]
    ids: list[int] = tokenizer.encode(SAMPLE)
    return ids[:most]


class EarlyExit(FromTarget):
    """Draft with the first `num_layers` layers; needs no second model, weights or cache.

    num_layers: None chooses the number with the best predicted speed-up. On first use with a
    target, this takes a few passes over a sample text.

    It pays if the first layers mostly predict the same token as all of them.
    """

    def __init__(
        self,
        num_layers: int | None = None,
        *,
        temperature: float | None = None,
        children: Children | str = Children.GREEDY_PLUS_ONE,
    ) -> None:
        if num_layers is not None and (type(num_layers) is not int or num_layers < 1):
            wrong = "EarlyExit needs the number of layers to draft with."
            cure = "Use a whole number from 1 to the target's number of layers, or None."
            raise InputError(explain(wrong, repr(num_layers), cure))
        name = "early-exit" if num_layers is None else f"early-exit:{num_layers}"
        super().__init__(name, temperature, children)
        self.num_layers = num_layers
        self._depths: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def make(self, target: LanguageModel, rows: Any) -> LanguageModel:
        if not hasattr(target, "first_layers"):
            wrong = "The first layers of this target cannot be run alone."
            cure = "Use a transformers model; one loaded by name with lean=False."
            raise UnsupportedError(explain(wrong, type(target).__name__, cure))
        made: LanguageModel = target.first_layers(rows, self.depth(target))
        return made

    def depth(self, target: Any) -> int:
        """The number of first layers to draft with for this target."""
        if self.num_layers is not None:
            return self.num_layers
        key = identity(target)
        if key not in self._depths:
            self._depths[key] = best_depth(target)
        return self._depths[key]
