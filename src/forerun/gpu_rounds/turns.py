"""The results of a round on their way to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Turn:
    """The memory for the results of every other launch of a round: the next one is launched before
    they are read.

    results: of all lanes, on the device; so are the other arguments.
    drafts: None where the host does not ask for them before the decision.
    states: memory on the device for those of the round, None where the host reads none.
    likely: the table of `Likeliest`, None where there is none.
    """

    def __init__(self, results: Any, drafts: Any, states: Any, likely: Any) -> None:
        self._is_done, self._are_drafted = _event(results), _event(results)
        self._results, self._drafts, self._likely = map(_room, (results, drafts, likely))
        self.states = states
        self._logits: dict[int, Any] = {}

    def send_drafts(self, drafts: Any) -> None:
        """Copy the drafts, by lane, when the device has come so far."""
        self._drafts.copy_(drafts, non_blocking=True)
        _record(self._are_drafted)

    def send(self, results: Any, watched: Any, likely: Any, logits: Mapping[int, Any]) -> None:
        """Copy the results, and the logits (N, V) of some lanes, when the device has come so
        far."""
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
        """Wait for the results."""
        if self._is_done is not None:
            self._is_done.synchronize()

    def drafts(self) -> list[list[int]]:
        """The drafts by lane, waited for; none where the host does not ask for them."""
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
        """What `Likeliest` has found for a lane."""
        return self._likely[lane].numpy()

    def logits(self, lane: int) -> Any:
        """The rows (N, V) of a lane that the host decides."""
        return self._logits[lane].numpy()


def _room(tensor: Any) -> Any:
    """Memory on the host for a tensor, if there is one, which its device can write to by itself."""
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
