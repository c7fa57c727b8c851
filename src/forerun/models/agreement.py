"""Checks that a strategy reproduces a fresh pass on the given model.

A list of architecture names would be incomplete and soon outdated. So a few tiny passes test the
model itself: two rows of different length are filled, continued by one token, by a draft that is
partly refused, and by several tokens, and every score is compared with the model run from scratch.
Trees are tested in the same way, if they are needed.
"""

from __future__ import annotations

from typing import Any

import torch

from forerun.models.forward import Forward
from forerun.trees.tree import Tree

# Per round and row: the number of tokens of the text to feed, then of wrong ones to be refused.
ROUNDS = (((3, 0), (2, 0)), ((1, 0), (1, 0)), ((2, 2), (1, 2)), ((3, 0), (3, 0)))
TEXT_LENGTH = 9
# Per row: tokens of the text before a tree, and the tree, whose last path continues the text.
TREES = ((4, Tree((-1, -1, 1, 0, 2))), (3, Tree((-1, -1, -1, 2, 2))))
# Share of the logits' spread by which two evaluations of one text may differ. Wrong positions,
# masks or states move logits by about their whole spread; rounding stays far below these. Float64
# is held to no more than float32, since many layers compute parts of it in float32.
TOLERANCE = 1e-4
TF32_TOLERANCE = 1e-2  # an accelerator may compute float32 products in TF32
LOW_PRECISION_TOLERANCE = 0.15  # float16 and bfloat16


class Probe:
    """Two texts of different length, and their logits (N, V) from a fresh pass."""

    def __init__(self, forward: Forward, vocab_size: int) -> None:
        text = [(7 + 7919 * (i + 1) ** 2) % vocab_size for i in range(TEXT_LENGTH)]
        self.texts = [text, text[2:]]
        self.wrong = text
        self.forward = forward
        self.fresh = [self._from_scratch(text) for text in self.texts]

    def agrees_with(self, rows: Any) -> bool:
        """Whether two empty `rows` of some strategy score the texts alike.

        Scores of a prefix are compared with a pass over the whole text, so a model that looks
        ahead disagrees with every strategy.
        """
        known = [0, 0]
        for plan in ROUNDS:
            ends = [known[r] + plan[r][0] for r in (0, 1)]
            pending = [self.texts[r][rows.lengths[r] : ends[r]] for r in (0, 1)]
            tokens = [pending[r] + self.wrong[: plan[r][1]] for r in (0, 1)]
            logits = rows.score([0, 1], tokens, [sum(plan[r]) for r in (0, 1)])  # (2, max N, V)
            for r in (0, 1):
                expected = self.fresh[r][known[r] : ends[r]]
                if not _agree(logits[r, : plan[r][0]], expected, self.forward):
                    return False
            rows.commit([0, 1], [len(row_pending) for row_pending in pending])
            known = ends
        return True

    def agrees_on_trees_with(self, rows: Any) -> bool:
        """Whether two empty `rows` score every node of a tree like its path run alone, and the text
        after a kept path like the text from scratch."""
        rows.score([0, 1], [text[:2] for text in self.texts], [1, 1])
        rows.commit([0, 1], [2, 2])
        tokens, kept = [], []
        for text, (stem, tree) in zip(self.texts, TREES, strict=True):
            path, nodes = tree.path(len(tree) - 1), self.wrong[: len(tree)]
            for node, token in zip(path, text[stem:], strict=False):
                nodes[node] = token
            tokens.append(text[2:stem] + nodes)
            kept.append([*range(stem - 2), *(stem - 2 + node for node in path)])
        logits = rows.score(
            [0, 1],
            tokens,
            [len(tree) + 1 for _, tree in TREES],
            [tree.parents for _, tree in TREES],
        )  # (2, max N, V)
        for r, (stem, tree) in enumerate(TREES):
            for path in map(tree.path, tree.leaves):
                alone = self.texts[r][:stem] + [tokens[r][stem - 2 + node] for node in path]
                expected = self._from_scratch(alone)[stem - 1 :]
                if not _agree(logits[r, [0, *(node + 1 for node in path)]], expected, self.forward):
                    return False
        rows.commit([0, 1], kept)
        rest = [text[length:] for text, length in zip(self.texts, rows.lengths, strict=True)]
        starts = list(rows.lengths)
        logits = rows.score([0, 1], rest, [len(tail) for tail in rest])
        return all(
            _agree(logits[r, : len(rest[r])], self.fresh[r][starts[r] :], self.forward)
            for r in (0, 1)
        )

    def _from_scratch(self, text: list[int]) -> Any:
        """Logits (N, V) after each token of a text, without a cache."""
        return self.forward(self.forward.tokens(text), len(text), use_cache=False).logits[0]


def _agree(ours: Any, fresh: Any, forward: Forward) -> bool:
    """Whether two arrays of logits (N, V) agree within the tolerance; NaN never agrees.

    The largest error of all positions decides.  In low precision it is the median, because there a
    mixture of experts may route one token differently on a near-tie.
    """
    ours, fresh = torch.as_tensor(ours).double(), fresh.double()
    error = (ours - fresh).pow(2).mean(-1).sqrt() / fresh.std(-1)  # (N,)
    if forward.dtype not in (torch.float32, torch.float64):
        return bool(error.median() <= LOW_PRECISION_TOLERANCE)
    is_on_cpu = forward.device.type == "cpu"
    return bool(error.max() <= (TOLERANCE if is_on_cpu else TF32_TOLERANCE))
