"""CUDA graphs, captured one at a time in a process, on the device they belong to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import torch

LOCK = Lock()


def captured(queue: Callable[[], Any], device: Any) -> tuple[Any, Any]:
    """A graph of what `queue` launches, and what it returned; nothing has run yet.

    Other threads may use the device meanwhile.  The capture stream is the device's own: torch's
    belongs to whichever device captured first.
    """
    with LOCK, torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        stream = _stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = queue()
    return graph, result


@cache
def _stream(device: Any) -> Any:
    return torch.cuda.Stream(device)
