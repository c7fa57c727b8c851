"""Spec-Bench prompts by task group, and what every benchmark records about its machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from forerun import prompts


def read(path: str | None, per_group: int) -> list[tuple[str, str]]:
    """(task group, first turn) of at most `per_group` prompts of each group; None: our own."""
    found = prompts.own() if path is None else prompts.read(path)
    return [(prompt.group, prompt.text) for prompt in prompts.pick(found, per_group)]


def machine() -> dict[str, Any]:
    """Where and with what a figure was made."""
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
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def summary(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0], "runs": len(values)}
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high, "runs": len(values)}


def save(script: str, results: dict[str, Any]) -> None:
    """Write the JSON beside the script that made it."""
    path = Path(script).with_suffix(".json")
    path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    print(f"wrote {path.name}")
