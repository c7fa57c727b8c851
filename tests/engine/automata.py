"""A grammar of our own: the allowed tokens depend on the sum of those before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sums:
    """After tokens that add up to s, `allowed[s % len(allowed)]` may follow.

    lies: it calls a token forced where there are others.
    """

    allowed: tuple[tuple[int, ...], ...]
    lies: bool = False

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Sequence[int]) -> SumMatcher:
        return SumMatcher(self)


@dataclass
class SumMatcher:
    grammar: Sums
    taken: list[int] = field(default_factory=list)

    def accept(self, token: int) -> bool:
        if token not in self.mask():
            return False
        self.taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        assert 0 < count <= len(self.taken)
        del self.taken[-count:]

    def mask(self) -> Sequence[int]:
        return self.grammar.allowed[sum(self.taken) % len(self.grammar.allowed)]

    def forced(self) -> list[int]:
        found: list[int] = []
        taken = list(self.taken)
        while len(found) < 4 and (len(self.mask()) == 1 or self.grammar.lies):
            found.append(self.mask()[-1])
            self.taken.append(found[-1])
        self.taken = taken
        return found
