"""How long a newcomer waits: `forerun generate` from the command to the end of a short answer.

First start: nothing is kept of the model, and nothing compiled.  Later starts find both.  Every
start is a process of its own; beside the seconds on the clock stand the processor time (user and
system), which a busy machine changes less, and the most memory that the process had.  How much the
cache holds afterwards is told beside the size of the model's file.

    python benchmarks/start.py [--target FILE.gguf] [--repeats 5] [--output start]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from forerun.loading.bundled import NAME, gguf_file
from forerun.loading.cache import cache_folder
from machine import save
from spec_bench import summary

QUESTION = "What is the capital of France?"
COMMAND = [sys.executable, "-m", "forerun.cli", "generate", QUESTION, "--max-new-tokens", "16"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=NAME, help="a model in one GGUF file")
    parser.add_argument("--repeats", type=int, default=5, help="later starts after each first")
    parser.add_argument("--first", type=int, default=1, help="first starts, which take long")
    parser.add_argument("--output", default="start", help="name of the JSON file")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    file = gguf_file(args.target)
    assert file is not None, "the model is in no GGUF file"
    first, compiled, later = [], [], []
    cache_folder().mkdir(parents=True, exist_ok=True)
    for _ in range(args.first):
        with tempfile.TemporaryDirectory(dir=cache_folder()) as cache:
            first.append(start(cache, args.target))
            for note in Path(cache, "packed").iterdir():
                note.unlink()
            compiled.append(start(cache, args.target))
            later += [start(cache, args.target) for _ in range(args.repeats)]
            kept = sum(each.stat().st_size for each in Path(cache, "packed").iterdir())
    rows = {"first start": first, "first start, compiled": compiled, "later starts": later}
    results = {name: both(row) for name, row in rows.items()}
    for name, row in results.items():
        clock, busy, peak = (row[key]["median"] for key in row)
        print(f"{name:24}{clock:8.2f} s on the clock{busy:8.2f} s of processor time{peak:8.0f} MB")
    print(f"{file.stat().st_size / 1e6:,.0f} MB in the file, {kept / 1e6:,.1f} MB kept beside it")
    about = {"load_average": [load_before, os.getloadavg()[0]], "asked": QUESTION}
    sizes = {"file_bytes": file.stat().st_size, "kept_bytes": kept}
    save(args.output, {"target": Path(args.target).name, **about, **sizes, "results": results})


def start(cache: str, target: str) -> dict[str, float]:
    """Seconds and peak memory of one process with a cache of its own."""
    variables = {**os.environ, "FORERUN_CACHE": cache, "NUMBA_CACHE_DIR": f"{cache}/numba"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "--target", target], env=variables, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    spent = time.perf_counter() - began
    if status:
        sys.exit(f"the command failed with {os.waitstatus_to_exitcode(status)}")
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    busy = used.ru_utime + used.ru_stime
    return {"seconds": spent, "processor_seconds": busy, "peak_megabytes": peak}


def both(starts: list[dict[str, float]]) -> dict[str, Any]:
    return {name: summary([one[name] for one in starts]) for name in starts[0]}


if __name__ == "__main__":
    main()
