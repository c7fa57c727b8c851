"""Counts of what followed: a trie of all texts of up to `depth` tokens, grown on demand.

Every suffix of the text walks down from the root as tokens come.  Where it is the first to come it
leaves a leaf that remembers only its place in the text; the branch below is grown when somebody
comes a second time.  So a token costs at most `depth` steps, whatever the history, and
text that never repeats costs about one leaf per walking suffix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BREAK = -1
"""Stands between texts: nothing follows across it."""
WIDTH = 8
"""So many likeliest successors of a node are kept in order."""


class Node:
    """A text that occurred `count` times; `place`: where one occurrence continues."""

    __slots__ = ("best", "children", "count", "place", "went_on")

    def __init__(self, place: int) -> None:
        self.count = 1
        self.went_on = 0  # counted from the second occurrence on, when children are kept
        self.place = place
        self.children: dict[int, Node] | None = None  # None: a leaf
        self.best: list[int] | None = None  # the likeliest children, the latest first among equals


Cursor = Node | int
"""Where a reader stands: at a node, or inside the tail of a leaf, before a place in the text."""


class SuffixTrie:
    """The texts added so far."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[int] = []
        self.num_nodes = 0
        self.root = Node(0)
        self.root.children, self.root.best = {}, []
        self.walkers: list[Node] = []  # the suffixes of 1, 2, ... tokens that occurred before

    def add(self, tokens: Iterable[int]) -> None:
        """Append tokens to the current text."""
        for token in tokens:
            self._add(token)

    def end_text(self) -> None:
        """End the current text; tokens added later belong to another one."""
        self.tokens.append(BREAK)
        self.walkers = []

    def _add(self, token: int) -> None:
        place = len(self.tokens)
        self.tokens.append(token)
        moved = []
        for length, node in enumerate((self.root, *self.walkers)):
            if length == self.depth:
                node.place = place
                break
            assert node.children is not None, "a suffix only walks where it was before"
            child = node.children.get(token)
            if child is None:
                node.children[token] = Node(place + 1)
                self.num_nodes += 1
            else:
                child.count += 1
                self._grow(child, length + 1)
                moved.append(child)
            node.went_on += 1
            _promote(node, token)
        self.walkers = moved

    def _grow(self, node: Node, length: int) -> None:
        """Turn a leaf that occurs again into a node whose child is what followed the first time."""
        if node.children is None:
            node.children, node.best = {}, []
            follower = self.tokens[node.place]
            if length < self.depth and follower != BREAK:
                node.children[follower] = Node(node.place + 1)
                node.best.append(follower)
                node.went_on = 1
                self.num_nodes += 1

    def follow(self, cursor: Cursor, token: int) -> Cursor | None:
        """The cursor after one more token; None if no text continues like that."""
        if isinstance(cursor, Node):
            if cursor.children:
                return cursor.children.get(token)
            cursor = cursor.place
        inside = cursor < len(self.tokens) and self.tokens[cursor] == token
        return cursor + 1 if inside else None

    def sequels(self, cursor: Cursor) -> list[tuple[int, float, Cursor]]:
        """The likeliest next tokens: (token, its share of the occurrences, cursor after it)."""
        if isinstance(cursor, Node):
            if cursor.children:
                likeliest = [(token, cursor.children[token]) for token in cursor.best or ()]
                return [(token, after.count / cursor.went_on, after) for token, after in likeliest]
            cursor = cursor.place
        if cursor >= len(self.tokens) or self.tokens[cursor] == BREAK:
            return []
        return [(self.tokens[cursor], 1.0, cursor + 1)]


def _promote(node: Node, token: int) -> None:
    """Reorder the likeliest children after one of them occurred once more."""
    best, children = node.best, node.children
    assert best is not None, "a node is grown before it is passed"
    assert children is not None
    count = children[token].count
    if token in best:
        best.remove(token)
    elif len(best) >= WIDTH and children[best[-1]].count > count:
        return
    index = len(best)
    while index and children[best[index - 1]].count <= count:
        index -= 1
    best.insert(index, token)
    del best[WIDTH:]


def read(trie: SuffixTrie, cursors: Sequence[Cursor], tokens: Iterable[int]) -> list[Cursor]:
    """Cursors of the suffixes of 1, 2, ... tokens of a text after it went on with `tokens`."""
    current: Sequence[Cursor] = cursors
    for token in tokens:
        steps = (trie.follow(cursor, token) for cursor in (trie.root, *current[: trie.depth - 1]))
        current = [cursor for cursor in steps if cursor is not None]
    return list(current)
