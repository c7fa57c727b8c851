"""`forerun batch`: killed and resumed against undisturbed, and one worker against two.

A job of `--prompts` prompts runs undisturbed, and once more with `--kills` kills (signal 9) evenly
over it, each time resumed.  Both must have one line per prompt, in order, and equal ones.  Then
jobs of `--lap-prompts` prompts run with one worker and with two in turns, over several laps,
beginning with another one each lap.  Speeds are lines over the time from the first finished line
to the last, so that loading the model does not count; the ratio is of two runs of one lap.

    python benchmarks/batch.py [--prompts 500] [--max-tokens 16] [--lap-prompts 100] [--laps 3]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import save
from spec_bench import summary

TOPICS = (
    "rivers",
    "bread",
    "the moon",
    "trains",
    "whales",
    "glass",
    "tea",
    "chess",
    "rain",
    "ants",
)


def main() -> None:
    args = read_arguments()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed = killed_and_whole(args, folder)
        speeds = workers_in_turns(args, folder)
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    results = {
        "killed": killed,
        "lines_per_second": {str(n): summary(each) for n, each in speeds.items()},
        "two_workers_over_one": summary(ratios),
    }
    holds = killed["num_equal"] == killed["num_lines"] == args.prompts
    print(
        f"{'✓' if holds else '✗'} killed {args.kills} times at {killed['lines_at_kills']} lines: "
        f"{killed['num_lines']} lines, {killed['num_twice']} twice, {killed['num_equal']} equal"
    )
    ratio = results["two_workers_over_one"]
    print(f"2 workers / 1: {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")
    settings = {key: value for key, value in vars(args).items() if key != "output"}
    report = {"load_average": load, "settings": settings, "holds": holds, "results": results}
    save(args.output, report)
    sys.exit(not holds)


def killed_and_whole(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """An undisturbed job, and the same one killed on its way."""
    source = write_prompts(folder / "prompts.jsonl", args.prompts)
    began = time.monotonic()
    wait(start(args, source, folder / "whole"))
    seconds = time.monotonic() - began
    print(f"undisturbed: {args.prompts} lines in {seconds:.0f} s with loading", flush=True)
    places = []
    for kill in range(1, args.kills + 1):
        journal = folder / "killed" / "journal.jsonl"
        process = start(args, source, folder / "killed")
        while num_lines(journal) < kill * args.prompts / (args.kills + 1):
            if process.poll() is not None:
                raise RuntimeError("The job ended before it could be killed.")
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        places.append(num_lines(journal))
        print(f"killed at {places[-1]} lines", flush=True)
    wait(start(args, source, folder / "killed"))
    whole, resumed = read(folder / "whole"), read(folder / "killed")
    indexes = [json.loads(line)["index"] for line in (folder / "killed" / "journal.jsonl").open()]
    pairs = zip(whole, resumed, strict=True)
    return {
        "seconds_undisturbed": seconds,
        "lines_at_kills": places,
        "num_lines": len(resumed),
        "num_twice": len(indexes) - len(set(indexes)),
        "num_equal": sum(one == other for one, other in pairs),
        "new_tokens": sum(line["response"]["body"]["usage"]["completion_tokens"] for line in whole),
    }


def workers_in_turns(args: argparse.Namespace, folder: Path) -> dict[int, list[float]]:
    """Lines per second of jobs with one worker and with two, lap by lap."""
    source = write_prompts(folder / "lap.jsonl", args.lap_prompts)
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for lap in range(args.laps):
        for workers in (1, 2) if lap % 2 == 0 else (2, 1):
            out = folder / f"lap{lap}-{workers}"
            speed = timed(start(args, source, out, workers), out / "journal.jsonl")
            speeds[workers].append(speed)
            print(f"lap {lap + 1}, {workers} workers: {speed:.2f} lines/s", flush=True)
    return speeds


def timed(process: subprocess.Popen[bytes], journal: Path) -> float:
    """Lines per second between the first finished line and the last."""
    times: list[float] = []
    while process.poll() is None:
        new = num_lines(journal) - len(times)
        times += [time.monotonic()] * new
        time.sleep(0.01)
    wait(process)
    times += [time.monotonic()] * (num_lines(journal) - len(times))
    return (len(times) - 1) / (times[-1] - times[0])


def start(
    args: argparse.Namespace, source: Path, out: Path, workers: int = 1
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "forerun.cli", "batch", str(source), "--out", str(out)]
    command += ["--max-tokens", str(args.max_tokens), "--temperature", "0.8"]
    command += ["--workers", str(workers)]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def wait(process: subprocess.Popen[bytes]) -> None:
    if process.wait():
        raise RuntimeError(f"A job ended with exit status {process.returncode}.")


def write_prompts(path: Path, count: int) -> Path:
    prompts = [f"Tell me fact number {i} about {TOPICS[i % len(TOPICS)]}." for i in range(count)]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def read(out: Path) -> list[Any]:
    """The output's lines without the job's start."""
    lines = [json.loads(line) for line in (out / "output.jsonl").open()]
    for line in lines:
        del line["response"]["body"]["created"]
    return lines


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--lap-prompts", type=int, default=100)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--output", default="batch", help="name of the JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
