"""Which replica Ray Serve sends an answer to: the one that stores its beginning, or a free one.

Ray carries this module to its own processes as it is, so it imports nothing of ours.
"""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class HomeRouter(RequestRouter):  # type: ignore[misc]
    """The session of a request names its home.  If that is gone or full, and where there is none,
    the less busy of two replicas is taken."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        home = ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            home = pending_request.metadata.session_id
        homes = [r for r in candidate_replicas if home and r.replica_id.unique_id == home]
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        return [homes, two] if homes else [two]
