"""Where a model is put if nobody says."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

GPU_NODES = ("nvidiactl", "nvidia0", "nvmap", "dxg", "kfd")
"""Of which a Linux system with a GPU has one: NVIDIA's, an embedded board's, Windows', AMD's."""


def usual_device() -> str | None:
    """The GPU where there is one; torch is not imported to hear that there is none."""
    if "torch" not in sys.modules and not may_have_gpu():
        return None
    import torch

    return "cuda" if torch.cuda.is_available() else None


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether torch might find a GPU."""
    system = platform.system()
    if system == "Linux":
        return any((devices / node).exists() for node in GPU_NODES)
    return system != "Darwin"
