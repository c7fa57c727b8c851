"""The server under load: speculation on and off, and other servers, in one run.

1 to 32 clients ask the default model for chat answers, each with a new request when its last has
ended.  A turn is a number of requests, as many as the server answers in some seconds without
speculation; contenders answer the same prompts with the same seeds in turn, over several laps,
beginning with another one each lap; a ratio is of two turns of one lap.  Speculation does not
change the text, so on and off do the same work, each on a server of its own: one would find the
prompts of the other's turn in its memory.  For the same reason every lap puts its number before its
prompts.  For each number of clients the servers are started anew, so that drafters remember nothing
of earlier ones.

    python benchmarks/serve.py [--clients 1,2,4,8,16,32] [--seconds 20] [--laps 3] [--output NAME]

How much prompts may slow rounds down is tried with several values; on and off have the usual one:

    python benchmarks/serve.py --clients 8 --slowdowns 1.45,2,3,6,8 --output slowdown

`--before SRC` adds another version of this library, from its source folder, and `--keep` measures
some numbers of clients again and keeps the rest.

Other servers are commands, with {port} for their port, and {gguf} and {model} for the default
model's weights in both forms:

    --contender 'transformers={model}=transformers serve {model} --port {port} --device cpu'
    --contender 'llama.cpp=default=llama-server -m {gguf} --port {port} -np 8 -c 8192 -t 2'

The word between the equals signs is the model's name in requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from forerun.loading.bundled import NAME, local_copy, packaged_weights
from load import Body, Stream, Turn, answer_all, ask, drive, figures
from machine import result_file, save
from spec_bench import read, summary

ENOUGH = 0.97
"""Speculation on is never slower than this against off."""


@dataclass
class Contender:
    """A server process, and how it is asked."""

    command: list[str]
    model: str
    extra: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    args = read_arguments()
    load = os.getloadavg()[0]
    prompts = [text for _, text in read(args.prompts, args.per_group)]
    Random(0).shuffle(prompts)  # every turn has something of all task groups
    count = counter()
    others = [parts.split("=", 2) for parts in args.contender]
    contenders = {
        "on": Contender(ours(args), NAME),
        "off": Contender(ours(args), NAME, {"speculation": False}),
        **{
            f"slowdown {value:g}": Contender([*ours(args), "--slowdown", f"{value:g}"], NAME)
            for value in args.slowdowns
        },
        **before(args),
        **{name: Contender(command.split(), fill(model)) for name, model, command in others},
    }
    path = result_file(args.output)
    kept = json.loads(path.read_text())["results"] if args.keep and path.exists() else {}
    results: dict[str, Any] = dict(kept)
    for num_clients in args.clients:
        turns = measure(args, contenders, prompts, num_clients)
        results[str(num_clients)] = report(turns, count)
        show(num_clients, results[str(num_clients)])
    results = dict(sorted(results.items(), key=lambda pair: int(pair[0])))
    ratios = {key: value["off"]["times_slower_than_on"] for key, value in results.items()}
    worst = min(ratios.values(), key=lambda ratio: ratio["median"])
    holds = worst["median"] >= ENOUGH
    mark = "✓" if holds else "✗"
    print(f"{mark} speculation on is at least {worst['median']:.2f} times as fast as off")
    settings = {
        "seconds": args.seconds,
        "laps": args.laps,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "prompts": len(prompts),
        "clients_kept": sorted(kept.keys() - set(map(str, args.clients))),
        "commands": {name: " ".join(map(short, one.command)) for name, one in contenders.items()},
    }
    save(
        args.output,
        {"load_average": load, "settings": settings, "holds": holds, "results": results},
    )
    sys.exit(not holds)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = [1, 2, 4, 8, 16, 32]
    parser.add_argument(
        "--clients", type=lambda text: [*map(int, text.split(","))], default=numbers
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn, speculation off")
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument(
        "--slowdowns", type=lambda text: [*map(float, text.split(","))], default=[], metavar="X,X"
    )
    parser.add_argument("--before", metavar="SRC", help="the source folder of another version")
    parser.add_argument("--keep", action="store_true", help="results of other numbers of clients")
    parser.add_argument("--drafter", help="as of `forerun serve` (default: the usual one)")
    parser.add_argument("--prompts", help="a file of prompts (default: our own)")
    parser.add_argument("--per-group", type=int, default=8)
    parser.add_argument("--output", default="serve", metavar="NAME", help="of the JSON file")
    parser.add_argument("--contender", action="append", default=[], metavar="NAME=MODEL=COMMAND")
    return parser.parse_args()


def ours(args: argparse.Namespace) -> list[str]:
    drafter = [] if args.drafter is None else ["--drafter", args.drafter]
    batch = ["--max-batch", str(args.max_batch)]
    return [sys.executable, "-m", "forerun.cli", "serve", "--port", "{port}", *batch, *drafter]


def before(args: argparse.Namespace) -> dict[str, Contender]:
    """The other version, with speculation on and off."""
    if not args.before:
        return {}
    command = ["env", f"PYTHONPATH={args.before}", *ours(args)]
    off = Contender(command, NAME, {"speculation": False})
    return {"before, on": Contender(command, NAME), "before, off": off}


def fill(text: str, port: int = 0) -> str:
    gguf, model = packaged_weights(), local_copy(NAME)
    return (
        text.replace("{port}", str(port))
        .replace("{gguf}", str(gguf))
        .replace("{model}", str(model))
    )


def short(word: str) -> str:
    """A word of a command without the place where a program lies."""
    name, equals, value = word.rpartition("=")
    return name + equals + Path(value).name if value.startswith("/") else word


def measure(
    args: argparse.Namespace,
    contenders: Mapping[str, Contender],
    prompts: list[str],
    num_clients: int,
) -> dict[str, list[Turn]]:
    """The turns of each contender, lap by lap."""
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    names = list(contenders)
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(running(one.command)) for name, one in contenders.items()
        }

        def bodies(name: str, lap: int) -> Body:
            numbered = [f"({100 + lap}) {text}" for text in prompts]
            return body_of(args, contenders[name], numbered, lap)

        for name in names:
            asyncio.run(ask(ports[name], bodies(name, -1)(0), Stream(0.0)))  # compiles
        num_answered = {}
        for name in names:  # ours learn what drafts and prompts cost
            driven = drive(ports[name], bodies(name, -1), num_clients, args.seconds)
            num_answered[name] = figures([asyncio.run(driven)], len)["answers"]
            time.sleep(1)  # what was left open ends
        num_requests = max(2 * num_clients, num_answered["off"])
        for lap in range(args.laps):
            first = lap % len(names)
            for name in names[first:] + names[:first]:
                asked = answer_all(ports[name], bodies(name, lap), num_clients, num_requests)
                turns[name].append(asyncio.run(asked))
    return turns


def body_of(args: argparse.Namespace, one: Contender, prompts: list[str], lap: int) -> Body:
    """Requests by number: in one lap the same for every contender."""

    def body(number: int) -> dict[str, Any]:
        place = 1000 * (lap + 1) + number
        return {
            "model": one.model,
            "messages": [{"role": "user", "content": prompts[place % len(prompts)]}],
            "stream": True,
            "temperature": args.temperature,
            "seed": place,
            "max_tokens": args.max_tokens,
            **one.extra,
        }

    return body


@contextmanager
def running(command: list[str], seconds: float = 300.0) -> Iterator[int]:
    """A server process until the block ends; its port.  seconds: to start in."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        filled = [fill(word, port) for word in command]
        process = subprocess.Popen(filled, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(process, port, log, seconds)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int, log: Any, seconds: float) -> None:
    """Until the server says that it is well."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"A server did not start:\n{log.read()[-3000:].decode(errors='replace')}")


def counter() -> Any:
    """How many tokens a text has, by the default model's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(local_copy(NAME) or NAME)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def report(turns: Mapping[str, list[Turn]], count: Any) -> dict[str, Any]:
    """Figures of each contender over its laps, and how much slower it was than speculation on."""
    texts = {name: [texts_of(lap) for lap in laps] for name, laps in turns.items()}
    ours = [name for name in texts if name in ("on", "off") or name.startswith("slowdown")]
    if any(texts[name] != texts["on"] for name in ours):
        raise RuntimeError("Speculation or a slowdown changed a text, which none may: report this.")
    speeds = {
        name: [
            sum(map(count, of_lap)) / lap.seconds
            for of_lap, lap in zip(texts[name], laps, strict=True)
        ]
        for name, laps in turns.items()
    }
    results: dict[str, Any] = {}
    for name, laps in turns.items():
        ratios = [on / other for on, other in zip(speeds["on"], speeds[name], strict=True)]
        results[name] = {
            **figures(laps, count),
            "tokens_per_second": summary(speeds[name]),
            "times_slower_than_on": summary(ratios),
        }
    return results


def texts_of(turn: Turn) -> list[str]:
    return ["".join(stream.texts) for stream in turn.streams]


def show(num_clients: int, results: Mapping[str, Any]) -> None:
    for name, figure in results.items():
        shown = [f"{num_clients:3} clients  {name:14}"]
        shown.append(f"{figure['tokens_per_second']['median']:7.1f} tokens/s")
        shown.append(f"x {figure['times_slower_than_on']['median']:.2f}")
        for key, title in (("first_token_ms", "first"), ("inter_token_ms", "next")):
            times = figure[key] or {}
            shown.append(
                f"{title} " + " / ".join(f"{times.get(p, 0):.0f}" for p in ("p50", "p95", "p99"))
            )
        print("  ".join(shown), "ms", flush=True)


if __name__ == "__main__":
    main()
