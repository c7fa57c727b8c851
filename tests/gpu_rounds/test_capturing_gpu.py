"""Captures beside the destruction of other graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from forerun.base.capturing import captured  # noqa: E402


class Owner:
    """Something that holds a graph and itself, so that only a collection frees it."""

    def __init__(self, graph: Any) -> None:
        self.graph, self.itself = graph, self


def test_a_graph_in_a_cycle_is_not_destroyed_during_a_capture() -> None:
    device = torch.device("cuda")
    counter = torch.zeros(1, device=device)

    def count() -> None:
        counter.add_(1)

    Owner(captured(count, device)[0])

    def allocate_and_count() -> list[Any]:
        lists: list[Any] = [[] for _ in range(200_000)]  # makes the collector run
        count()
        return lists

    graph, _ = captured(allocate_and_count, device)
    graph.replay()
    assert counter.item() == 1
