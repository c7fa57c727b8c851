"""How long a newcomer waits: `forerun generate` from the command to the end of a short answer.

First start: nothing is kept of the model but its converted folder, and nothing compiled.  Later
starts find both.  Every start is a process of its own; beside the seconds on the clock stands the
processor time (user and system), which a busy machine changes less.

    python benchmarks/start.py [--repeats 5] [--output start]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from forerun.loading.bundled import NAME, cache_folder, local_copy
from machine import save
from spec_bench import summary

COMMAND = [sys.executable, "-m", "forerun.cli", "generate", "What is the capital of France?"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="later starts after each first")
    parser.add_argument("--first", type=int, default=1, help="first starts, which take long")
    parser.add_argument("--output", default="start", help="name of the JSON file")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    folder = local_copy(NAME)
    assert folder is not None, "the default model is not installed"
    first, later = [], []
    for _ in range(args.first):
        with tempfile.TemporaryDirectory(dir=cache_folder()) as cache:
            first.append(start(cache, folder))
            later += [start(cache, folder) for _ in range(args.repeats)]
    results = {"first start": both(first), "later starts": both(later)}
    for name, row in results.items():
        clock, busy = row["seconds"]["median"], row["processor_seconds"]["median"]
        print(f"{name:14}{clock:8.2f} s on the clock{busy:8.2f} s of processor time")
    about = {"load_average": [load_before, os.getloadavg()[0]], "asked": COMMAND[-1]}
    save(args.output, {**about, "results": results})


def start(cache: str, folder: Path) -> dict[str, float]:
    """Seconds of one process, with a cache of its own that has the converted model."""
    copied = Path(cache, folder.name)
    if not copied.exists():
        shutil.copytree(folder, copied, copy_function=os.symlink)
    variables = {**os.environ, "FORERUN_CACHE": cache, "NUMBA_CACHE_DIR": f"{cache}/numba"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(COMMAND, env=variables, check=True, stdout=subprocess.DEVNULL)
    spent = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": spent, "processor_seconds": busy}


def both(starts: list[dict[str, float]]) -> dict[str, Any]:
    return {name: summary([one[name] for one in starts]) for name in starts[0]}


if __name__ == "__main__":
    main()
