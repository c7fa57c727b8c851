"""Copies the results of a round to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Turn:
    """Memory for the results of every second launch of a round, because the next round is launched
    before they are read.

    results: of all lanes, on the device, like the other arguments.
    drafts: None if the host does not need them before the decision.
    states: memory for hidden states; None if the host reads none.
    likely: the table of `Likeliest`; None if there is none.
    """

    def __init__(self, results: Any, drafts: Any, states: Any, likely: Any) -> None:
        self._is_done, self._are_drafted = _event(results), _event(results)
        self._results, self._drafts, self._likely = map(_room, (results, drafts, likely))
        self.states = states
        self._logits: dict[int, Any] = {}

    def send_drafts(self, drafts: Any) -> None:
        """Queue the copy of the drafts to the host."""
        self._drafts.copy_(drafts, non_blocking=True)
        _record(self._are_drafted)

    def send(self, results: Any, watched: Any, likely: Any, logits: Mapping[int, Any]) -> None:
        """Queue the copies of the results, and of the logits (N, V) of some lanes, to the host."""
        self._results.copy_(results, non_blocking=True)
        if self.states is not None:
            self.states.copy_(watched[: len(self.states)])  # the next round may be of this shape
        if likely is not None:
            self._likely.copy_(likely, non_blocking=True)
        self._logits = {
            lane: _room(rows).copy_(rows, non_blocking=True) for lane, rows in logits.items()
        }
        _record(self._is_done)

    def wait(self) -> None:
        """Wait until the results have arrived."""
        if self._is_done is not None:
            self._is_done.synchronize()

    def drafts(self) -> list[list[int]]:
        """Wait for the drafts and return them by lane; none if the host did not ask for them."""
        if self._drafts is None:
            return []
        if self._are_drafted is not None:
            self._are_drafted.synchronize()
        drafts: list[list[int]] = self._drafts.tolist()
        return drafts

    def table(self) -> list[list[int]]:
        """The results of each lane: accepted tokens (-1: not in use), the extra token, the fault,
        the row that it follows (one more than its node), the draft."""
        results: list[list[int]] = self._results.tolist()
        return results

    def likely(self, lane: int) -> Any:
        """The log-probabilities that `Likeliest` computed for a lane."""
        return self._likely[lane].numpy()

    def logits(self, lane: int) -> Any:
        """The logits (N, V) of a lane that the host decides."""
        return self._logits[lane].numpy()


def _room(tensor: Any) -> Any:
    """Pinned host memory for a tensor, to which the device can copy by itself; None without a
    tensor."""
    return (
        None
        if tensor is None
        else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    )


def _event(tensor: Any) -> Any:
    return torch.cuda.Event() if tensor.is_cuda else None


def _record(event: Any) -> None:
    if event is not None:
        event.record()
