"""Connects to a Ray cluster, and divides its cores and GPUs among workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.base.errors import InputError, MissingExtraError, explain


@dataclass(frozen=True)
class Share:
    """The resources of one worker."""

    num_cpus: int
    num_gpus: int

    def count_in(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """How many workers fit on the machines of `ray.nodes()` that are alive."""
        counts = []
        for resources in _alive(nodes):
            cpus = int(resources.get("CPU", 0)) // self.num_cpus
            gpus = int(resources.get("GPU", 0)) // self.num_gpus if self.num_gpus else cpus
            counts.append(min(cpus, gpus))
        return sum(counts)


def start_ray() -> Any:
    """Connect to the cluster at RAY_ADDRESS, or start Ray on this machine. Returns the module
    `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # do not report what runs here
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import ray
        import ray.data
    except ImportError as error:
        cure = 'Install it with: pip install "forerun[ray]"'
        wrong = "This needs Ray with Ray Data."
        raise MissingExtraError(explain(wrong, f"no {error.name}", cure)) from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=True)
    return ray


def share_of_cluster(ray: Any, num_workers: int, device: str | None) -> Share:
    """The resources of each worker; raises if there is not enough room for all of them."""
    if num_workers < 1:
        raise InputError(explain("There are too few workers.", num_workers, "Use 1 or more."))
    nodes = _alive(ray.nodes())
    cores = [node["CPU"] for node in nodes if node.get("CPU")]
    num_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    takes_gpu = num_gpus > 0 and device in (None, "cuda")
    if device == "cuda" or takes_gpu:
        available, what = num_gpus, "GPUs"
    else:
        available, what = int(sum(cores)), "cores"
    if num_workers > available:
        cure = f"Use --workers {max(available, 1)} or fewer, or a larger cluster."
        received = f"{num_workers} workers for {available} {what}"
        raise InputError(explain("The cluster is too small.", received, cure))
    return Share(share_of_nodes(num_workers, cores), 1 if takes_gpu else 0)


def share_of_nodes(num_workers: int, cores: Sequence[float]) -> int:
    """How many cores each worker gets so that all fit. cores: of each node."""
    workers_per_node = -(-num_workers // len(cores))
    return max(1, int(min(cores)) // workers_per_node)


def reason_of(error: BaseException) -> str:
    """The last line of Ray's error message, which says what happened."""
    return str(error).strip().splitlines()[-1][:300].rstrip(".")


def _alive(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [node["Resources"] for node in nodes if node["Alive"]]
