"""Starts replicas on Ray for a command, waits for them, and stops them with it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from threading import Thread
from types import TracebackType
from typing import Any

import ray
from ray import serve
from ray.serve import RunTarget

from forerun.base.errors import InputError, explain
from forerun.scale.ray_parts import RayReplicas, model_replicas
from forerun.scale.settings import ModelSettings, Scale
from forerun.serve.openai.fingerprint import ModelCard
from forerun.serve.watching.logs import say

POLL_SECONDS = 0.25
END_SECONDS = 10.0
"""Seconds that Ray has to end the replicas; waiting for a cluster that is gone would never end."""


class Session:
    """A connection to Ray: to the cluster that this machine belongs to, or to a new one.

    The replicas are a Ray Serve application without Ray's HTTP proxies, because the ingress runs in
    this process.
    """

    def __init__(self) -> None:
        self._app = f"forerun-{os.getpid()}"
        self._has_started = False

    def __enter__(self) -> Session:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told what runs here
        ray.init(
            ignore_reinit_error=True,
            include_dashboard=False,
            log_to_driver=False,  # they are in Ray's own folder of logs
            logging_level=logging.WARNING,
        )
        self._is_alone = len(ray.nodes()) == 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = Thread(target=self._end, daemon=True)
        ending.start()
        ending.join(END_SECONDS)
        if ending.is_alive():  # Ray's own processes are gone or hang; its exit would wait for them
            say("leaving without Ray, which does not answer")
            atexit.register(_leave, 0 if kind is None else 1)

    def _end(self) -> None:
        if self._has_started:
            serve.delete(self._app)
        ray.shutdown()

    def usual_cpus(self, most: int) -> float:
        """The default number of cores per replica: an even share of one machine's, at least one."""
        cores = max(int(node["Resources"].get("CPU", 1)) for node in ray.nodes())
        return float(max(1, cores // most)) if self._is_alone else 1.0

    def start(
        self, settings: ModelSettings, scale: Scale, seconds: float
    ) -> tuple[RayReplicas, ModelCard]:
        """Start replicas and wait for the first. Returns them, with the card of their model."""
        self._check_resources(scale)
        serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})
        target = RunTarget(model_replicas(settings, scale), name=self._app, route_prefix=None)
        self._has_started = True
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        self._wait(seconds)
        return RayReplicas(handle), handle.card.remote().result()

    def _check_resources(self, scale: Scale) -> None:
        """Refuse more replicas than this machine has room for; on a cluster, which may grow, do not
        check."""
        if not self._is_alone:
            return
        there = ray.cluster_resources()
        for kind, each in (("GPU", scale.num_gpus), ("CPU", scale.num_cpus)):
            needed, present = scale.least * each, there.get(kind, 0)
            if needed > present:
                received = f"{scale.least} times {each:g}, and {present:g} in this machine"
                cure = f"Use fewer replicas, or --replica-{kind.lower()}s."
                raise InputError(explain(f"There are too few {kind}s.", received, cure))

    def _wait(self, seconds: float) -> None:
        """Wait until all replicas are ready. Raises the reason if the first one fails or time runs
        out."""
        deadline = time.monotonic() + seconds
        while True:
            overview = serve.status().applications.get(self._app)
            state = "" if overview is None else str(overview.status.value)
            if state == "RUNNING":
                return
            is_late = time.monotonic() > deadline
            if is_late or state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise _not_ready(overview, seconds if is_late else None)
            time.sleep(POLL_SECONDS)


def _leave(status: int) -> None:
    """End this process at once, without its exit handlers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _not_ready(overview: Any, seconds: float | None) -> InputError:
    """The error for replicas that failed or were not ready in time."""
    told = [] if overview is None else [overview.message]
    if overview is not None:
        told += [part.message for part in overview.deployments.values()]
    reason = next((_last_line(text) for text in reversed(told) if text), "no reason given")
    if seconds is None:
        wrong, cure = "No replica could be started.", "Correct that, and start again."
    else:
        wrong = f"The replicas are not ready after {seconds:g} seconds."
        cure = "Raise --ready-seconds, or lower --replica-cpus or --replica-gpus."
    return InputError(explain(wrong, reason, cure))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:500]
