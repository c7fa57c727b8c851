"""Kernels that are launched while the one before them ends, which hides the latency of a launch.

Such a kernel calls `gdc_wait` before it reads anything that the one before it wrote; that one calls
`gdc_launch_dependents` when the next may come, and not before its own `gdc_wait` has returned.  So
what was written before it began may be read without waiting (past the first-level cache, `.cg`),
and so may weights.  `ratio` goes by what single programs tell, and waits only before it ends
(kernels/news.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

OLDEST = (9, 0)
"""The compute capability from which kernels can overlap."""


@cache
def dependent_launch(device: Any) -> dict[str, Any]:
    """Options of a kernel that is launched while the last one ends, where the device can do it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < OLDEST:
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}
