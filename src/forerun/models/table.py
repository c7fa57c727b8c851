"""A model given by a table of laws, one for each context.

Proofs and tests need a target whose law is known exactly and differs after every prefix, so that a
rule that looks one position too far or too near is caught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.models.function import Floats, StatelessModel, log_probs

Context = tuple[int, ...]


class TableModel(StatelessModel):
    """A model whose next token depends on the last `order` tokens: its law is `table[context]`.

    Texts shorter than `order` are contexts too, from the empty one on.
    """

    def __init__(
        self, vocab_size: int, order: int, table: Mapping[Context, Sequence[float] | Floats]
    ) -> None:
        self.name = f"table(vocab_size={vocab_size}, order={order})"
        self.vocab_size = vocab_size
        self.order = order
        self.table = {
            context: _law(context, table, vocab_size) for context in _contexts(vocab_size, order)
        }

    @classmethod
    def random(cls, vocab_size: int, order: int, seed: int, zeros: float = 0.0) -> TableModel:
        """A random table; in each law about a share `zeros` of the tokens is impossible."""
        generator = np.random.default_rng(seed)
        table: dict[Context, Floats] = {}
        for context in _contexts(vocab_size, order):
            law = generator.dirichlet(np.ones(vocab_size))
            impossible = generator.random(vocab_size) < zeros
            impossible[generator.integers(vocab_size)] = False  # keep at least one token possible
            law[impossible] = 0.0
            table[context] = law / law.sum()
        return cls(vocab_size, order, table)

    def probs(self, prefix: Sequence[int] | NDArray[np.int64]) -> Floats:
        """The law (V,) of the token after `prefix`."""
        start = max(0, len(prefix) - self.order)
        return self.table[tuple(int(token) for token in prefix[start:])]

    def last_logits(self, tokens: NDArray[np.int64], num_logits: int) -> Floats:
        ends = range(len(tokens) - num_logits + 1, len(tokens) + 1)
        return log_probs(np.stack([self.probs(tokens[:end]) for end in ends]))


def _contexts(vocab_size: int, order: int) -> list[Context]:
    """Every text of at most `order` tokens, shortest first."""
    return [
        context
        for length in range(order + 1)
        for context in product(range(vocab_size), repeat=length)
    ]


def _law(
    context: Context, table: Mapping[Context, Sequence[float] | Floats], vocab_size: int
) -> Floats:
    """The law (V,) of one context; InputError if it is missing or no distribution."""
    if context not in table:
        raise InputError(
            explain(
                f"The table has no distribution for the context {context}.",
                f"{len(table)} contexts",
                "Give one for every text of at most `order` tokens, the empty one included.",
            )
        )
    law = np.array(table[context], np.float64)
    if law.shape != (vocab_size,) or (law < 0).any() or abs(law.sum() - 1) > 1e-9:
        raise InputError(
            explain(
                f"Context {context} must have {vocab_size} probabilities of sum 1.",
                law,
                "Divide each row by its sum.",
            )
        )
    law.flags.writeable = False
    return law
