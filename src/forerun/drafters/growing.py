"""A draft tree while it grows: the same token after the same node is the same node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forerun.drafters.base import Guess
from forerun.tree import ROOT
from forerun.types import Drawn


@dataclass
class GrowingTree:
    """Nodes in the order they came, so that a parent is always before its children."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, parent: int, token: int, value: float | None = None) -> int:
        """The node of a token after a parent, which keeps the value it first came with, if any."""
        node = self._known.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            if value is not None:
                self.values.append(value)
        return node

    def has(self, parent: int, token: int) -> bool:
        return (parent, token) in self._known

    def add_path(self, tokens: Iterable[int], room: int) -> None:
        """A line of tokens from the text on, as far as there is room for new nodes."""
        node = ROOT
        for token in tokens:
            if len(self) >= room and not self.has(node, token):
                return
            node = self.child(node, token)

    def guess(self, drawn: Drawn = Drawn.POINT) -> Guess:
        return Guess(self.tokens, drawn, parents=self.parents, values=self.values or None)
