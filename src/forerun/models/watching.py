"""Hidden states of scored tokens, kept until a commit says which tokens stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forerun.models.hidden_states import History
from forerun.models.padded_pass import FeedPart


class Watch:
    """Per row, the states (N, layers * hidden size) of the tokens scored and last committed."""

    def __init__(self, layers: Sequence[int], lengths: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._scored: list[list[Any]] = [[] for _ in lengths]  # in parts, since the commit
        self._kept: list[Any] = [None] * len(lengths)
        self._history = History(lengths, torch.cat)

    def forget(self, row: int, known: int = 0) -> None:
        """Of what was scored since the last commit, only the first `known` tokens still count."""
        self._scored[row] = [torch.cat(self._scored[row])[:known]] if known else []

    def see(self, parts: Sequence[FeedPart], hidden_states: Sequence[Any]) -> None:
        """Take the states (R, N, hidden size) after each layer of a pass, the embedding first."""
        device = hidden_states[0].device
        chosen = [hidden_states[layer].to(device) for layer in self.layers]
        states = torch.cat(chosen, dim=-1)  # (R, N, layers * hidden size)
        for index, part in enumerate(parts):
            self._scored[part.row].append(states[index, : len(part)])

    def keep(self, row: int, path: Sequence[int]) -> None:
        if self._scored[row]:
            states = torch.cat(self._scored[row])
            if not isinstance(path, range):
                states = states[list(path)]
            elif len(path) < len(states):
                states = states[: len(path)].clone()  # frees the states of rejected tokens
            self._kept[row] = self._history.add(row, states)
        self._scored[row] = []

    def kept(self, row: int) -> Any:
        return self._kept[row]

    def copy(self, source: int, row: int, length: int) -> None:
        self._scored[row], self._kept[row] = [], None
        self._history.copy(source, row, length)

    def release(self, row: int) -> None:
        self._scored[row], self._kept[row] = [], None
        self._history.release(row)
