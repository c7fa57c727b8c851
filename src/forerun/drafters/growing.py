"""A draft tree under construction, in which no node has two children with the same token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forerun.drafters.base import Guess
from forerun.rules.types import Drawn
from forerun.trees.tree import ROOT


@dataclass
class GrowingTree:
    """A tree whose nodes are stored in the order they were added, so a parent precedes its
    children."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, parent: int, token: int, value: float | None = None) -> int:
        """The child of `parent` with this token; an existing node keeps its first value."""
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
        """Add a path of tokens from the root, until the tree has `room` nodes."""
        node = ROOT
        for token in tokens:
            if len(self) >= room and not self.has(node, token):
                return
            node = self.child(node, token)

    def guess(self, drawn: Drawn = Drawn.POINT) -> Guess:
        """The tree as a `Guess`."""
        return Guess(self.tokens, drawn, parents=self.parents, values=self.values or None)
