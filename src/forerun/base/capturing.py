"""Captures CUDA graphs, one at a time in a process, each on its own device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import torch

LOCK = Lock()


def captured(queue: Callable[[], Any], device: Any) -> tuple[Any, Any]:
    """Capture the kernels that `queue` launches. Returns the graph and the value that `queue`
    returned; no kernel has run yet.

    Other threads may use the device meanwhile. Each device has its own capture stream, because
    torch's default one belongs to the device that captured first.
    """
    with LOCK, torch.cuda.device(device), _without_collections():
        graph = torch.cuda.CUDAGraph()
        stream = _stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        current = torch.cuda.current_stream(device)
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = queue()
        except BaseException:
            torch.cuda.set_stream(current)  # a capture that fails leaves its own behind
            raise
    return graph, result


@contextmanager
def _without_collections() -> Iterator[None]:
    """Suspend garbage collection: a capture fails if its thread destroys another graph."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _stream(device: Any) -> Any:
    return torch.cuda.Stream(device)
