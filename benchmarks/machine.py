"""Which machine a benchmark runs on, and where its results are kept.

Results are in `results/MACHINE/NAME.json`.  The folder is named after the machine, for example
`x86-2-cores` or `h200`; the environment variable BENCH_MACHINE gives it another name, which two
machines of the same kind need.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ANY = "any-machine"  # for results that no machine changes, such as false alarms of an audit
ARCHITECTURES = {"x86_64": "x86", "AMD64": "x86", "arm64": "aarch64"}


def folder_name(device: str = "cpu") -> str:
    """The folder of this machine: a GPU by its name, else the architecture and number of cores."""
    if "BENCH_MACHINE" in os.environ:
        return os.environ["BENCH_MACHINE"]
    if device.startswith("cuda"):
        return device_name(device).removeprefix("NVIDIA ").lower().replace(" ", "-")
    architecture = platform.machine()
    return f"{ARCHITECTURES.get(architecture, architecture)}-{os.cpu_count()}-cores"


def result_file(name: str, device: str = "cpu", folder: str | None = None) -> Path:
    """The JSON file of that name in the folder of this machine; an absolute path stays as it is."""
    path = RESULTS / (folder or folder_name(device)) / f"{name.removesuffix('.json')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, results: dict[str, Any]) -> None:
    """Write results as they are, and say where."""
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    inside = path.is_relative_to(RESULTS.parent)
    print(f"wrote {path.relative_to(RESULTS.parent) if inside else path}")


def save(name: str, results: dict[str, Any], device: str = "cpu") -> None:
    """Write results with the machine, the versions and the command that made them."""
    write(result_file(name, device), {"machine": machine(), **results})


def machine() -> dict[str, Any]:
    """Processor, versions and command of this run."""
    import numpy
    import torch
    import transformers

    import forerun

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [ln for ln in cpuinfo.read_text().splitlines() if ln.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {
        "cpu": model,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "forerun": forerun.__version__,
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "command": " ".join(["python", *(Path(each).name for each in sys.argv)]),
    }


def device_name(device: str) -> str:
    """The product name of a GPU, or CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else "CPU"
