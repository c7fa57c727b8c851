"""Tiny random models of many architectures, and an engine-like driver that checks their rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.models import LanguageModel
from forerun.trees.tree import Tree

torch.set_num_threads(1)

VOCAB_SIZE = 61
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large, so that every layer moves the logits
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
EXACT, ROUNDED = 1e-9, 1e-4  # float64 throughout, or float32 somewhere inside


@dataclass(frozen=True)
class Architecture:
    """A configuration, how its rows should be kept, and how closely they should score."""

    kind: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = EXACT
    dtype: torch.dtype = torch.float64
    attention: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, (self.kind, self.attention)))

    def build(self) -> Any:
        torch.manual_seed(0)
        config = AutoConfig.for_model(self.kind, **{**COMMON, **self.options})
        model = AutoModelForCausalLM.from_config(config, attn_implementation=self.attention)
        return model.to(self.dtype).eval()


def random_tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(VOCAB_SIZE) for _ in range(count)]


def random_tree(generator: random.Random, num_nodes: int) -> Tree:
    """Any tree of that size: bushy, a chain, or anything between."""
    reach = generator.choice((1, 2, num_nodes))  # how far back a parent may lie
    return Tree(tuple(generator.randint(max(-1, i - reach), i - 1) for i in range(num_nodes)))


class Driver:
    """Plays the engine: owns the texts, feeds what is pending, and compares with fresh passes."""

    def __init__(self, language_model: LanguageModel, model: Any, num_rows: int) -> None:
        self.language_model = language_model
        self.model = model
        self.state = language_model.start(num_rows, capacity=128)
        self.texts: list[list[int]] = [[] for _ in range(num_rows)]
        self.worst = 0.0

    def enter(self, row: int, prompt: Sequence[int]) -> None:
        self.language_model.release(self.state, row)
        assert self.state.lengths[row] == 0
        self.texts[row] = list(prompt)

    def round(
        self, rows: Sequence[int], drafts: Sequence[Sequence[int]], accepted: Sequence[int]
    ) -> float:
        """Score, compare, commit; the largest error of this round."""
        lengths = self.state.lengths
        pending = [self.texts[row][lengths[row] :] for row in rows]
        tokens = [[*p, *d] for p, d in zip(pending, drafts, strict=True)]
        counts = [len(draft) + 1 for draft in drafts]
        logits = self.language_model.score(self.state, rows, tokens, counts)
        assert logits.shape == (len(rows), max(counts), VOCAB_SIZE)
        error = 0.0
        for index, (row, draft, count) in enumerate(zip(rows, drafts, counts, strict=True)):
            expected = fresh_logits(self.model, [*self.texts[row], *draft])[-count:]
            error = max(error, largest(logits[index, :count] - expected))
        kept = [len(p) + n for p, n in zip(pending, accepted, strict=True)]
        self.language_model.commit(self.state, rows, kept)
        for row, draft, count in zip(rows, drafts, accepted, strict=True):
            self._go_on(row, draft[:count])
        self.worst = max(self.worst, error)
        return error

    def tree_round(
        self,
        rows: Sequence[int],
        drafts: Sequence[Sequence[int]],
        trees: Sequence[Tree | None],  # None: a chain
        accepted: Sequence[int],  # the last node kept, -1 for none
    ) -> float:
        """The same with trees: every path down to a leaf is compared with the path run alone."""
        lengths = self.state.lengths
        pending = [self.texts[row][lengths[row] :] for row in rows]
        tokens = [[*p, *d] for p, d in zip(pending, drafts, strict=True)]
        parents = [None if tree is None else tree.parents for tree in trees]
        counts = [len(draft) + 1 for draft in drafts]
        logits = self.language_model.score(self.state, rows, tokens, counts, parents)
        error, kept, paths = 0.0, [], []
        for index, (row, draft, tree) in enumerate(zip(rows, drafts, trees, strict=True)):
            shape = tree or Tree.chain(len(draft))
            for leaf in shape.leaves or (-1,):
                nodes = (-1, *shape.path(leaf))
                alone = [*self.texts[row], *(draft[i] for i in nodes[1:])]
                expected = fresh_logits(self.model, alone)[-len(nodes) :]
                error = max(error, largest(logits[index, [i + 1 for i in nodes]] - expected))
            path, first = shape.path(accepted[index]), len(pending[index])
            kept.append([*range(first), *(first + node for node in path)])
            paths.append(path)
        self.language_model.commit(self.state, rows, kept)
        for row, draft, path in zip(rows, drafts, paths, strict=True):
            self._go_on(row, [draft[node] for node in path])
        self.worst = max(self.worst, error)
        return error

    def _go_on(self, row: int, accepted: Sequence[int]) -> None:
        self.texts[row] += accepted
        assert self.state.lengths[row] <= len(self.texts[row])
        self.texts[row].append((7 * len(self.texts[row]) + row) % VOCAB_SIZE)  # the extra

    def play(self, num_rounds: int, seed: int) -> float:
        """Random rows, drafts, acceptances, and requests that leave; the largest error."""
        generator = random.Random(seed)
        num_rows = len(self.texts)
        for row in range(num_rows):
            self.enter(row, random_tokens(generator, generator.choice((1, 4, 13))))
        for _ in range(num_rounds):
            rows = sorted(generator.sample(range(num_rows), generator.randint(1, num_rows)))
            drafts = [random_tokens(generator, generator.randint(0, 4)) for _ in rows]
            self.round(rows, drafts, [generator.randint(0, len(draft)) for draft in drafts])
            if generator.random() < 0.3:
                row = generator.randrange(num_rows)
                self.enter(row, random_tokens(generator, generator.choice((1, 4, 13))))
        return self.worst

    def play_trees(self, num_rounds: int, seed: int) -> float:
        """Random trees, chains among them, in ragged batches; the largest error."""
        generator = random.Random(seed)
        num_rows = len(self.texts)
        for row in range(num_rows):
            self.enter(row, random_tokens(generator, generator.choice((1, 4, 13))))
        for _ in range(num_rounds):
            rows = sorted(generator.sample(range(num_rows), generator.randint(1, num_rows)))
            drafts = [random_tokens(generator, generator.randint(0, 7)) for _ in rows]
            trees = [
                None if generator.random() < 0.2 else random_tree(generator, len(draft))
                for draft in drafts
            ]
            accepted = [generator.randint(-1, len(draft) - 1) for draft in drafts]
            self.tree_round(rows, drafts, trees, accepted)
        return self.worst


@torch.inference_mode()
def fresh_logits(model: Any, text: Sequence[int]) -> Any:
    """Logits (N, V) of a text with no cache."""
    return model(torch.tensor([list(text)], device=model.device), use_cache=False).logits[0]


def largest(difference: Any) -> float:
    value = float(difference.abs().max())
    return value if value == value else float("inf")
