"""Chooses the replica for an answer: the one that stores its beginning, or a free one.

Ray copies this module to its own processes, so it imports nothing else of Forerun.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

AVOID = "-"
"""The prefix of a replica's name that tells the router to avoid this replica."""


def wish_of(work: Any) -> str:
    """A string for the request's session id, which names the replica that a `Work` prefers, or
    those that it avoids."""
    names = [work.replica] if work.replica else [f"{AVOID}{name}" for name in work.avoid]
    return ",".join(names)


class HomeRouter(RequestRouter):  # type: ignore[misc]
    """A Ray Serve router that reads from a request's session id which replica to prefer or to
    avoid."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        names: list[str] = []
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            names = pending_request.metadata.session_id.split(",")
        homes = [r for r in candidate_replicas if r.replica_id.unique_id in names]
        others = [r for r in candidate_replicas if AVOID + r.replica_id.unique_id not in names]
        others = others or candidate_replicas
        two = random.sample(others, min(2, len(others)))
        return [homes, two] if homes else [two]
