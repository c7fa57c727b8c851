"""Takes hidden states from the passes of a transformers model, for drafters that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forerun.models.hidden_states import History


class Watch:
    """Hidden states of scored tokens per row, kept until a commit says which tokens stay.

    States have the shape (N, layers * hidden size).
    """

    def __init__(self, layers: Sequence[int], lengths: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._scored: list[list[Any]] = [[] for _ in lengths]  # in parts, since the last commit
        self._kept: list[Any] = [None] * len(lengths)
        self._history = History(lengths, torch.cat)

    def forget(self, row: int, known: int = 0) -> None:
        """Forget all but the first `known` tokens that were scored since the last commit."""
        self._scored[row] = [torch.cat(self._scored[row])[:known]] if known else []

    def see(self, fed: Sequence[tuple[int, int]], hidden_states: Sequence[Any]) -> None:
        """Append the states of a pass.

        fed: the rows of the pass, and the number of tokens of each.
        hidden_states: (R, N, hidden size) for the embedding and after each layer.
        """
        device = hidden_states[0].device
        chosen = [hidden_states[layer].to(device) for layer in self.layers]
        states = torch.cat(chosen, dim=-1)  # (R, N, layers * hidden size)
        for index, (row, count) in enumerate(fed):
            self._scored[row].append(states[index, :count])

    def keep(self, row: int, path: Sequence[int]) -> None:
        """Commit: keep the states of a path of scored tokens, and forget the others."""
        if self._scored[row]:
            states = torch.cat(self._scored[row])
            if not isinstance(path, range):
                states = states[list(path)]
            elif len(path) < len(states):
                states = states[: len(path)].clone()  # frees the states of rejected tokens
            self._kept[row] = self._history.add(row, states)
        self._scored[row] = []

    def kept(self, row: int) -> Any:
        """The states that the last commit kept."""
        return self._kept[row]

    def copy(self, source: int, row: int, length: int) -> None:
        """Let `row` have the states of the first `length` tokens of `source`."""
        self._scored[row], self._kept[row] = [], None
        self._history.copy(source, row, length)

    def release(self, row: int) -> None:
        self._scored[row], self._kept[row] = [], None
        self._history.release(row)
