"""Hidden states of what a row is fed, kept until it is known which tokens stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forerun.models.pieces import Piece


class Watch:
    """Per row, the states (N, layers * hidden size) of the tokens scored and last committed."""

    def __init__(self, layers: Sequence[int], num_rows: int) -> None:
        self.layers = tuple(layers)
        self._scored: list[list[Any]] = [[] for _ in range(num_rows)]  # in parts, since the commit
        self._kept: list[Any] = [None] * num_rows

    def forget(self, row: int, known: int = 0) -> None:
        """Of what was scored since the last commit, only the first `known` tokens still count."""
        self._scored[row] = [torch.cat(self._scored[row])[:known]] if known else []

    def see(self, pieces: Sequence[Piece], hidden_states: Sequence[Any]) -> None:
        """Take the states (R, N, hidden size) after each layer of a pass, the embedding first."""
        device = hidden_states[0].device
        chosen = [hidden_states[layer].to(device) for layer in self.layers]
        states = torch.cat(chosen, dim=-1)  # (R, N, layers * hidden size)
        for index, piece in enumerate(pieces):
            self._scored[piece.row].append(states[index, : len(piece)])

    def keep(self, row: int, path: Sequence[int]) -> None:
        if self._scored[row]:
            states = torch.cat(self._scored[row])
            self._kept[row] = states[: len(path)] if isinstance(path, range) else states[list(path)]
        self._scored[row] = []

    def kept(self, row: int) -> Any:
        return self._kept[row]

    def release(self, row: int) -> None:
        self._scored[row], self._kept[row] = [], None
