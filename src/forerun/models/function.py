"""Any Python function as a model, for arrays of probabilities and models of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.models.stateless import Floats, StatelessModel, log_probs

# Functions may compute in half precision; further from one than this is not a distribution.
SUM_TOLERANCE = 1e-2


class FunctionModel(StatelessModel):
    """Wraps `function(ids) -> law`, where `ids` is a 1-D integer array of the whole text.

    The function returns either (len(ids), V), row i being the law of what follows `ids[:i + 1]`,
    or (V,), the law of what follows the text. It returns probabilities, or any unnormalised
    logarithm of them when `logits=True`. Without `vocab_size` it is asked once about the text
    `[0]` to learn V.
    """

    tokenizer: Any = None  # `wrap` may be given one with the function

    def __init__(
        self,
        function: Callable[[NDArray[np.int64]], Any],
        vocab_size: int | None = None,
        logits: bool = False,
    ) -> None:
        self.function = function
        self.logits = logits
        self.name = getattr(function, "__name__", type(function).__name__)
        self.vocab_size = vocab_size or self._evaluate(np.zeros(1, np.int64)).shape[-1]

    def last_logits(self, tokens: NDArray[np.int64], num_logits: int) -> Floats:
        rows = self._evaluate(tokens)
        if rows.ndim == 1:  # only the last law is given, so each earlier one is a call of its own
            earlier = [
                self._evaluate(tokens[:end])
                for end in range(len(tokens) - num_logits + 1, len(tokens))
            ]
            rows = np.stack([*earlier, rows])
        if rows.shape[-1] != self.vocab_size:
            raise InputError(
                explain(
                    f"The function {self.name!r} must return {self.vocab_size} numbers per token.",
                    f"shape {rows.shape}",
                    "Pass the right vocab_size, or let it be found.",
                )
            )
        rows = rows[-num_logits:]  # (num_logits, V)
        return rows if self.logits else log_probs(self._checked(rows))

    def _evaluate(self, tokens: NDArray[np.int64]) -> Floats:
        """Call the function; (len(tokens), V) or (V,)."""
        rows = np.asarray(self.function(tokens), np.float64)
        if rows.ndim == 1 or (rows.ndim == 2 and len(rows) == len(tokens)):
            return rows
        raise InputError(
            explain(
                f"The function {self.name!r} must return one distribution per token, "
                "(len(ids), V), or the last one, (V,).",
                f"shape {rows.shape} for {len(tokens)} tokens",
                "Remove a batch axis if there is one.",
            )
        )

    def _checked(self, probs: Floats) -> Floats:
        sums = probs.sum(-1)
        if (probs >= 0).all() and (np.abs(sums - 1) <= SUM_TOLERANCE).all():
            return probs
        raise InputError(
            explain(
                f"The function {self.name!r} must return probabilities.",
                f"a smallest entry of {probs.min():.3g} and sums from {sums.min():.3g} "
                f"to {sums.max():.3g}",
                "Apply a softmax, or pass logits=True.",
            )
        )
