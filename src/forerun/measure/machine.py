"""The machine and versions that a figure was measured with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun.base.version import __version__

PACKAGES = ("numpy", "torch", "transformers", "numba")


@dataclass(frozen=True)
class Machine:
    """Processor, device and versions; `load` is the load average when the run began."""

    cpu: str
    architecture: str
    cores: int
    threads: int
    device: str
    dtype: str
    python: str
    forerun: str
    packages: dict[str, str]
    load: float
    command: str


def this_machine(target: Any = None, *, command: str = "") -> Machine:
    """The machine this process runs on, and the device and dtype of `target`."""
    model = getattr(target, "model", None)
    return Machine(
        cpu=_cpu(),
        architecture=platform.machine(),
        cores=os.cpu_count() or 1,
        threads=_threads(),
        device=device_name(str(getattr(model, "device", "cpu"))),
        dtype=str(getattr(model, "dtype", "unknown")).removeprefix("torch."),
        python=platform.python_version(),
        forerun=__version__,
        packages=dict(_versions()),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
        command=command,
    )


def device_name(device: str) -> str:
    """The product name of a device."""
    if not device.startswith("cuda"):
        return device
    import torch

    return str(torch.cuda.get_device_name(device))


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _threads() -> int:
    try:
        import torch
    except ImportError:
        return 1
    return int(torch.get_num_threads())


def _versions() -> list[tuple[str, str]]:
    versions = []
    for package in PACKAGES:
        try:
            versions.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return versions
