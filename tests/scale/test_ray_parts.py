"""Parts of Ray Serve's side that need Ray's package and no cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.ray

GONE = """
import sys, time
from forerun.scale import ray_session

ray_session.END_SECONDS = 0.5
ray_session.ray.shutdown = lambda: time.sleep(600)
session = ray_session.Session()
ray_session.ray.init = lambda **options: None
ray_session.ray.nodes = lambda: [{}]
import atexit
atexit.register(time.sleep, 600)  # as Ray's own end at the exit of a process
with session:
    print("served", flush=True)
"""


def test_a_cluster_that_does_not_answer_keeps_nobody_from_leaving() -> None:
    # It would sleep for ten minutes, twice.
    done = subprocess.run([sys.executable, "-c", GONE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "served\n"


def chosen(session: str, names: str) -> tuple[list[str], set[str]]:
    """The first choice, and all of the last one over many draws."""
    from forerun.scale.ray_router import HomeRouter

    replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names]
    pending = SimpleNamespace(
        routing_context=SimpleNamespace(should_backoff=False),
        metadata=SimpleNamespace(session_id=session),
    )
    router: Any = object.__new__(HomeRouter)
    last: set[str] = set()
    for _ in range(60):
        ranked = asyncio.run(HomeRouter.choose_replicas(router, replicas, pending))
        last |= {replica.replica_id.unique_id for replica in ranked[-1]}
    return [replica.replica_id.unique_id for replica in ranked[0]], last


def test_a_home_comes_first_and_lost_replicas_are_avoided() -> None:
    """Each of 3 names is drawn in 60 draws of 2 but for odds of 3 in 3^60."""
    from forerun.engine.answer_options import AnswerOptions
    from forerun.scale.messages import Work
    from forerun.scale.ray_router import wish_of

    pair, options = ("none", "match"), AnswerOptions()
    assert chosen(wish_of(Work(pair, [], options, [], "d", "b", ("a",))), "abc")[0] == ["b"]
    assert chosen(wish_of(Work(pair, [], options, [], "d", "", ("a",))), "abc")[1] == {"b", "c"}
    assert chosen(wish_of(Work(pair, [], options, [], "d", "", ("a", "c"))), "ac")[1] == {"a", "c"}
    assert chosen(wish_of(Work(pair, [], options, [], "d")), "abc")[1] == {"a", "b", "c"}
