"""Chooses the device of a model if the user names none."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain, meant

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""The number formats in which a model can be asked to compute."""

GPU_NODES = ("nvidiactl", "nvidia0", "nvmap", "dxg", "kfd")
"""Files under /dev that show that a Linux system has a GPU: NVIDIA's (two), those of an embedded
board and of Windows, and AMD's."""


def usual_device() -> str | None:
    """The GPU if there is one, else None. torch is imported only if there may be one."""
    if sys.modules.get("torch") is None and not may_have_gpu():
        return None
    import torch

    return "cuda" if torch.cuda.is_available() else None


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether torch might find a GPU."""
    system = platform.system()
    if system == "Linux":
        return any((devices / node).exists() for node in GPU_NODES)
    return system != "Darwin"


def check_place(device: Any, dtype: Any) -> None:
    """Refuse a device that does not exist, and an unknown dtype."""
    if dtype is not None and str(dtype).removeprefix("torch.") not in (*DTYPES, "auto"):
        question = meant(str(dtype).replace("fp", "float"), DTYPES)
        cure = f"Use {', '.join(DTYPES)}, or None for what the weights were saved in.{question}"
        raise InputError(explain("The dtype is not known.", repr(dtype), cure))
    place = f"cuda:{device}" if isinstance(device, int) else device
    kind = str("" if place is None else place).partition(":")[0]
    if place == "" or kind == "cuda":
        _check_cuda(place)
    elif kind not in ("", "cpu"):
        _check_kind(place)


def _check_kind(device: Any) -> None:
    import torch

    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        cure = "Use cpu, cuda, cuda:1 or mps, or leave it out."
        raise InputError(explain("There is no such kind of device.", repr(device), cure)) from error


def _check_cuda(device: Any) -> None:
    if device == "":
        cure = "Use cpu or cuda, or None for a GPU if there is one."
        raise InputError(explain("No device is named.", "an empty text", cure))
    import torch

    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = str(device).partition(":")[2]
    if num_devices == 0 or (index.isdigit() and int(index) >= num_devices):
        there = f"{num_devices} CUDA devices" if num_devices else "no CUDA device"
        cure = "Use the device cpu, or leave it out."
        raise InputError(explain(f"PyTorch finds {there} here.", repr(str(device)), cure))
