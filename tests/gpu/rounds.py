"""Rounds for the kernels, and what the reference makes of them in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import forerun as fr
from forerun.kernels.decide import Round
from forerun.kernels.decide_trial import LAUNCHES
from forerun.kernels.scratch import Outcome, Scratch
from forerun.trees.tree import Tree


@dataclass(frozen=True)
class Example:
    """Logits and guesses on the host, rows of several temperatures and lengths."""

    target: torch.Tensor  # (B, K + 1, V) float32
    draft: torch.Tensor  # (B, K, V) float32
    tokens: torch.Tensor  # (B, K) int64
    lengths: list[int]
    temperatures: list[float]
    seeds: list[int]
    positions: list[int]
    tree: Tree | None = None

    def round(self, dtype: Any, device: str, *, point: bool = False, law: bool = False) -> Round:
        """The round on a device; law: with the draft's logits, unless it is a point draft."""
        parents = None
        if self.tree is not None:
            shape = self.tokens.shape
            parents = torch.tensor(self.tree.parents, dtype=torch.int32, device=device)
            parents = parents.expand(shape).contiguous()
        seeds = np.array(self.seeds, dtype=np.uint64).view(np.int64)
        return Round(
            self.target.to(device, dtype),
            self.tokens.to(device),
            torch.tensor(self.lengths, dtype=torch.int32, device=device),
            torch.tensor(self.temperatures, device=device),
            torch.tensor(seeds, device=device),
            torch.tensor(self.positions, device=device),
            self.draft.to(device, dtype) if law and not point else None,
            parents,
        )

    def reference(self, rule: str, *, point: bool = False) -> tuple[list[int], list[int]]:
        """(accepted, extra) by the rule itself on the same logits in float64, row by row."""
        target, draft = (part.double().numpy() for part in (self.target, self.draft))
        accepted, extra = [], []
        for row, temperature in enumerate(self.temperatures):
            tokens, options = (
                self.tokens[row : row + 1].numpy(),
                {
                    "lengths": self.lengths[row : row + 1],
                    "tree": self.tree,
                },
            )
            made = fr.Draft.point(tokens, **options)
            if not point and rule != "match":
                made = fr.Draft.sampled(tokens, logits=draft[row : row + 1], **options)
            verdict = fr.verify(
                made,
                target_logits=target[row : row + 1],
                temperature=temperature,
                rule=rule,
                seed=self.seeds[row : row + 1],
                positions=self.positions[row : row + 1],
            )
            accepted.append(int(verdict.num_accepted[0]))
            extra.append(int(verdict.extra[0]))
        return accepted, extra


def example(
    seed: int,
    num_rows: int,
    draft_length: int,
    vocab_size: int,
    *,
    temperatures: tuple[float, ...] = (1.0, 0.7, 0.0),
    ragged: bool = True,
    near: float = 1.0,
    tree: Tree | None = None,
) -> Example:
    """A draft near its target, sampled from its own law at each row's temperature."""
    rng = np.random.default_rng([seed, num_rows, draft_length, vocab_size])
    target = rng.normal(0, 2.5, (num_rows, draft_length + 1, vocab_size)).astype(np.float32)
    draft = target[:, :-1] + near * rng.normal(size=(num_rows, draft_length, vocab_size))
    draft = draft.astype(np.float32)
    heat = [temperatures[row % len(temperatures)] for row in range(num_rows)]
    tokens = np.zeros((num_rows, draft_length), dtype=np.int64)
    for row in range(num_rows):
        gumbel = rng.gumbel(size=draft[row].shape)
        tokens[row] = np.argmax(draft[row] + heat[row] * gumbel, axis=-1)
    lengths = [
        draft_length - (row % (draft_length + 1) if ragged else 0) for row in range(num_rows)
    ]
    return Example(
        torch.tensor(target),
        torch.tensor(draft),
        torch.tensor(tokens),
        lengths,
        heat,
        [2**64 - 1 - 977 * row for row in range(num_rows)],
        [row * (2**32 + 5) for row in range(num_rows)],
        tree,
    )


def rows_of(made: Example, some: Sequence[int]) -> Example:
    """Some of the rows."""
    rows = list(some)
    return replace(
        made,
        target=made.target[rows],
        draft=made.draft[rows],
        tokens=made.tokens[rows],
        lengths=[made.lengths[row] for row in rows],
        temperatures=[made.temperatures[row] for row in rows],
        seeds=[made.seeds[row] for row in rows],
        positions=[made.positions[row] for row in rows],
    )


def rounded(made: Example, dtype: torch.dtype) -> Example:
    """The example with logits of another precision.  At temperature 0 the draft is the likeliest
    token of the rounded logits: every other has probability 0."""
    target, draft = (part.to(dtype).float() for part in (made.target, made.draft))
    tokens = made.tokens.clone()
    for row, temperature in enumerate(made.temperatures):
        if temperature == 0.0:
            tokens[row] = torch.tensor(draft[row].numpy().argmax(axis=-1))
    return replace(made, target=target, draft=draft, tokens=tokens)


def launch(rule: str, made: Round, scratch: Scratch | None = None) -> Outcome:
    """What the kernels decide."""
    num_sequences, num_rows, vocab_size = made.logits.shape
    device = made.logits.device
    out = Outcome.allocate(num_sequences, device)
    for part in (out.reached, out.accepted, out.extra, out.fault):
        part.fill_(-7)  # so that what is not written is seen
    scratch = scratch or Scratch.allocate(num_sequences, num_rows, vocab_size, device)
    LAUNCHES[rule](made, scratch, out)
    return out


def decided(out: Outcome) -> tuple[list[int], list[int]]:
    """(accepted, extra) of rounds without faults."""
    assert not out.fault.any()
    return out.accepted.tolist(), out.extra.tolist()
