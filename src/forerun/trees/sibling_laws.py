"""Ways to draw the children of one node, and the law of each child given its earlier siblings.

The rules for sampled trees need to know, for every token, the law it was really drawn from, given
its earlier siblings. These ways are in use:

- *independent*: every child from q, possibly the same token twice;
- *without replacement*: each child from q without its earlier siblings, so no guess is wasted;
- *greedy plus one*: one child from q without its likeliest n - 1 tokens, then those n - 1 tokens.
  The drawn child comes first: in this order one level keeps as many tokens as any rule can
  with such children (Hu et al.);
- *likeliest*: the n likeliest tokens, all of them certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from forerun.base.arrays import HostArray


class Children(Enum):
    """A way to draw the children of a node."""

    INDEPENDENT = "sampled"
    WITHOUT_REPLACEMENT = "without_replacement"
    GREEDY_PLUS_ONE = "greedy_plus_one"
    LIKELIEST = "point"


def next_law(how: Children, law: HostArray, earlier: Sequence[int], count: int) -> HostArray:
    """The law (V,) of the next of `count` children, given the draft law (V,) and the earlier
    children."""
    if how is Children.INDEPENDENT:
        return law
    if how is Children.WITHOUT_REPLACEMENT:
        return _without(law, earlier)
    if how is Children.LIKELIEST:
        return _certain(len(law), _likeliest(law, count)[len(earlier) % len(law)])
    likeliest = _likeliest(law, count - 1)
    if not earlier:
        return _without(law, likeliest)
    return _certain(len(law), likeliest[(len(earlier) - 1) % len(law)])


def draw_children(
    how: Children, law: HostArray, count: int, choose: Callable[[HostArray], int]
) -> tuple[list[int], HostArray]:
    """Draw a node's children. Returns their tokens, and the laws (count, V) that they were drawn
    from.

    law: the draft law (V,) at the node.
    choose: draws a token from a law (V,), with noise that nothing else has used.
    """
    tokens: list[int] = []
    laws = np.empty((count, len(law)), dtype=law.dtype)
    for child in range(count):
        laws[child] = next_law(how, law, tokens, count)
        tokens.append(choose(laws[child]))
    return tokens, laws


def _without(law: HostArray, tokens: Sequence[int]) -> HostArray:
    """The law with some tokens removed, normalised. If nothing is left, a point mass on another
    token.

    Any law is correct in that case, as long as it is chosen before the token.
    """
    rest = law.copy()
    rest[list(tokens)] = 0.0
    total = rest.sum()
    if total > 0:
        return np.asarray(rest / total)
    free = (token for token in range(len(law)) if token not in tokens)
    return _certain(len(law), next(free, 0))


def _certain(size: int, token: int) -> HostArray:
    """A point mass (size,) on a token."""
    return np.asarray(np.eye(1, size, token)[0])


def _likeliest(law: HostArray, count: int) -> list[int]:
    """The ids of the largest entries, the largest first, the lowest id on ties."""
    count = min(count, len(law))
    if count == 0:
        return []
    edge = np.partition(law, len(law) - count)[len(law) - count]
    above = np.flatnonzero(law > edge)
    chosen = np.concatenate([above, np.flatnonzero(law == edge)[: count - len(above)]])
    return list(chosen[np.argsort(-law[chosen], kind="stable")].tolist())
