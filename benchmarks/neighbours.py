"""A client beside three others that send the largest bodies there are, with a key of its own.

Turns of the client alone and beside the three take one another's place; each turn is a number of
chat requests, one after the other.  The three send, each as soon as its last has been answered:
two million token ids, 300,000 unknown keys, a million lists, and one text of four megabytes.

    python benchmarks/neighbours.py [--requests 24] [--laps 4] [--output NAME]
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from machine import save
from serve import running

ENOUGH = 2.0
"""Times that the client's 95th percentile may be as long as it is alone."""

MIB = 2**20
KEYS = ("neighbour", "first", "second", "third")
BODIES = {
    "ids": b'{"prompt": [' + b"5," * (2 * MIB - 16) + b"5]}",
    "keys": json.dumps({f"k{i}": 1 for i in range(300_000)}).encode(),
    "lists": b'{"prompt": [' + b"[]," * (MIB - 16) + b"[]]}",
    "text": b'{"prompt": "' + b"a " * (2 * MIB - 16) + b'"}',
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=24, help="of a turn")
    parser.add_argument("--laps", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--output", default="neighbours", metavar="NAME", help="of the JSON file")
    args, load = parser.parse_args(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.txt"
        keys.write_text("".join(f"{name}:{secret(name)}\n" for name in KEYS))
        command = [sys.executable, "-m", "forerun.cli", "serve", "--port", "{port}"]
        with running([*command, "--api-key-file", str(keys)]) as port:
            results = measure(port, args)
    ratio = results["times_alone"]
    print(f"{'✓' if ratio <= ENOUGH else '✗'} p95 is {ratio:.2f} times as long as alone")
    about = {"load_average": load, "settings": vars(args), "holds": ratio <= ENOUGH}
    save(args.output, {**about, "results": results})
    sys.exit(ratio > ENOUGH)


def measure(port: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the client's requests by turns, and how the others' were answered."""
    seconds: dict[str, list[float]] = {"alone": [], "beside": []}
    statuses: Counter[str] = Counter()
    answered = multiprocessing.Manager().dict()
    for lap in range(args.laps):
        for name in ("alone", "beside") if lap % 2 else ("beside", "alone"):
            others = [
                multiprocessing.Process(target=send_all, args=(port, key, answered))
                for key in KEYS[1:]
                if name == "beside"
            ]
            for other in others:
                other.start()
            time.sleep(1.0)
            for number in range(args.requests):
                took, status = chat(port, number, args.max_tokens)
                seconds[name].append(took)
                statuses[f"{name} {status}"] += 1
            for other in others:
                other.terminate()
                other.join()
    figures = {name: quantiles(values) for name, values in seconds.items()}
    return {
        **figures,
        "times_alone": figures["beside"]["p95"] / figures["alone"]["p95"],
        "statuses": dict(statuses),
        "others": dict(sorted(answered.items())),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    return {name: float(np.quantile(values, q)) for name, q in (("p50", 0.5), ("p95", 0.95))}


def secret(name: str) -> str:
    return f"sk-{name}-0123456789"


def chat(port: int, seed: int, max_tokens: int) -> tuple[float, int]:
    """The seconds of a chat request of the neighbour's, and its status."""
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    body = {"messages": messages, "seed": seed, "max_tokens": max_tokens}
    begin = time.perf_counter()
    status = post(port, "/v1/chat/completions", json.dumps(body).encode(), KEYS[0])
    return time.perf_counter() - begin, status


def send_all(port: int, key: str, answered: Any) -> None:
    """Send every large body in turn, until the process is ended."""
    while True:
        for name, body in BODIES.items():
            status = post(port, "/v1/completions", body, key)
            answered[f"{name} {status}"] = answered.get(f"{name} {status}", 0) + 1


def post(port: int, path: str, body: bytes, key: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret(key)}"}
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except OSError:
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    main()
