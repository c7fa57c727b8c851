"""How many threads torch would use, without importing it for that."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

TOPOLOGY = Path("/sys/devices/system/cpu")


def usual_threads() -> int:
    """What torch says where it is imported; else OMP_NUM_THREADS, else one for each core."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(stated) if stated.isdigit() and int(stated) else num_cores()


def num_cores(topology: Path = TOPOLOGY) -> int:
    """The cores that this process may use; two processors of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for processor in os.sched_getaffinity(0):
        try:
            cores.add((topology / f"cpu{processor}/topology/thread_siblings_list").read_text())
        except OSError:  # not told
            cores.add(str(processor))
    return len(cores)
