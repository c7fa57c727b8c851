"""The tokens that a row is fed between two commits: text, then optionally a tree of guesses.

A chain is treated as text, so rows with and without trees share their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.models.base import Kept, Parents, check_commit, shared_prefix
from forerun.trees.tree import Tree

NO_TREE = Tree(())


@dataclass(frozen=True)
class Feed:
    """Tokens that follow the stored text of a row; the last `len(tree)` are the nodes of `tree`."""

    tokens: Sequence[int] = ()
    tree: Tree = NO_TREE

    @classmethod
    def of(cls, tokens: Sequence[int], parents: Parents | None) -> Feed:
        """A feed; a tree that is a chain is treated as text."""
        tokens = list(tokens)  # a copy, since the caller may extend its list
        if parents is None:
            return cls(tokens)
        tree = Tree(tuple(parents))
        if len(tree) > len(tokens):
            wrong = "A tree has more nodes than there are tokens."
            received = f"{len(tree)} parents for {len(tokens)} tokens"
            raise InputError(explain(wrong, received, "Name the parent of each draft token."))
        return cls(tokens) if tree.is_chain else cls(tokens, tree)

    @property
    def trunk(self) -> int:
        """The number of tokens before the tree."""
        return len(self.tokens) - len(self.tree)

    def follows(self, index: int) -> int:
        """The index of a token's predecessor (in a tree, its parent); -1 is the end of the stored
        text."""
        trunk = self.trunk
        return index - 1 if index < trunk else trunk + self.tree.parents[index - trunk]

    def shared(self, new: Feed, most: int) -> int:
        """The number of leading tokens, at most `most`, in which this feed and `new` agree: the
        token and its parent are the same."""
        count = shared_prefix(self.tokens, new.tokens, most)
        for index in range(min(self.trunk, new.trunk), count):
            if self.follows(index) != new.follows(index):
                return index
        return count

    def offsets(self, begin: int, end: int) -> NDArray[np.int64]:
        """Positions after the stored text of the tokens from `begin` to `end`, (end - begin,)."""
        places = np.arange(begin, end)
        is_node = places >= self.trunk
        if is_node.any():
            depths = np.asarray(self.tree.depths)
            places[is_node] = self.trunk + depths[places[is_node] - self.trunk]
        return places

    def path(self, row: int, kept: Kept) -> Sequence[int]:
        """The indices of the tokens to keep.  row: for the error, which is an InputError if some
        token is not the parent of the next."""
        if isinstance(kept, int):
            check_commit([row], [len(self.tokens)], [kept])
            indices: Sequence[int] = range(kept)
            known = min(kept, self.trunk)  # text before the tree is a chain and needs no check
        else:
            check_commit([row], [len(self.tokens)], [len(kept)])
            indices, known = kept, 0
        before = known - 1
        for index in indices[known:]:
            if not before < index < len(self.tokens) or self.follows(index) != before:
                wrong = f"Row {row} can only keep a path: token {index} does not follow {before}."
                cure = "Keep the tokens fed before the tree, then nodes from parent to child."
                raise InputError(explain(wrong, list(indices), cure))
            before = index
        return indices


def feeds(tokens: Sequence[Sequence[int]], parents: Sequence[Parents | None] | None) -> list[Feed]:
    """The feed of each row, from the arguments of `score`."""
    if parents is None:
        parents = [None] * len(tokens)
    if len(parents) != len(tokens):
        wrong = "Parents must have one entry per scored row, None for a chain."
        received = f"{len(parents)} entries for {len(tokens)} rows"
        raise InputError(explain(wrong, received, "Pass None for all rows if none has a tree."))
    return [Feed.of(*row) for row in zip(tokens, parents, strict=True)]
