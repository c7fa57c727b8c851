"""Launches kernels while the kernel before them ends, which hides the latency of a launch.

Such a kernel calls `gdc_wait` before it reads anything that the kernel before it wrote.  That one
calls `gdc_launch_dependents` when the next may begin, and not before its own `gdc_wait` has
returned.  So data that were written before it began, and weights, may be read without waiting (past
the first-level cache, `.cg`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

OLDEST = (9, 0)
"""The compute capability from which on kernels can overlap."""


@cache
def dependent_launch(device: Any) -> dict[str, Any]:
    """Launch options of a kernel that may begin while the one before it ends; on devices that
    cannot do that, options that turn it off."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < OLDEST:
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}
