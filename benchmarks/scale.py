"""Replicas on Ray: deaths under load, one against two, and what Ray costs.

    python benchmarks/scale.py deaths   # -9 every 5 seconds for a minute, ours and Ray's own
    python benchmarks/scale.py speed    # no Ray, one replica, two replicas, in turns

Deaths: 8 clients stream answers of the default model at temperature 0.8, with three drafters in
turn; every text is compared with that of an undisturbed run.  The same requests are then sent to
the same server as an ordinary application of Ray Serve, two replicas behind Ray's proxy.

Speed: servers with one core for each model take turns on the same prompts and seeds, lap by lap,
beginning with another one each lap; a ratio is of two turns of one lap.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from forerun.loading.bundled import NAME
from load import Stream, Turn, ask, drive, figures
from machine import result_file, save
from serve import counter, running
from spec_bench import read, summary

sys.path.append(str(Path(__file__).parents[1] / "tests" / "scale"))
from replicas import replica_pids

DRAFTERS = ("ngram", "suffix", "heads")
START_SECONDS = 900.0
MOST_COST = 0.03
"""What Ray may take of a server's tokens a second."""


def main() -> None:
    args = read_arguments()
    parts = {"deaths": deaths, "speed": speed, "plain-server": plain_server}
    holds = [parts[name](args) for name in args.part or ("deaths", "speed")]
    sys.exit(not all(holds))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help="deaths, speed (default: both)")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="of deaths; a turn: a third")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two deaths")
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--requests", type=int, default=48, help="different ones, again and again")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--port", type=int, default=0, help="of plain-server")
    return parser.parse_args()


def body_of(args: argparse.Namespace, number: int, prompts: list[str]) -> dict[str, Any]:
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": prompts[number % len(prompts)]}],
        "stream": True,
        "temperature": 0.8,
        "seed": number,
        "max_tokens": args.max_tokens,
        "speculation": {"drafter": DRAFTERS[number % len(DRAFTERS)]},
    }


def some_prompts() -> list[str]:
    prompts = [text for _, text in read(None, 8)]
    random.Random(0).shuffle(prompts)
    return prompts


# Deaths


@dataclass
class Toll:
    """What came of the requests of one run."""

    texts: dict[int, list[str]] = field(default_factory=dict)  # by request
    pauses: list[float] = field(default_factory=list)  # the longest of each answer, in seconds
    num_asked: int = 0
    num_refused: int = 0  # answered with an error before any text
    num_broken: int = 0  # ended by an error, or without an end, after some text
    num_killed: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def deaths(args: argparse.Namespace) -> bool:
    prompts = some_prompts()
    drafters = [word for name in DRAFTERS for word in ("--drafter", name)]
    ours = [sys.executable, "-m", "forerun.cli", "serve", "--port", "{port}", "--ray"]
    ours += ["--replicas", "2", "--replica-cpus", "1", *drafters]
    plain = [sys.executable, __file__, "plain-server", "--port", "{port}"]
    with running(ours, START_SECONDS) as port:
        quiet = asyncio.run(all_once(args, port, prompts))
        disturbed = asyncio.run(kill_meanwhile(args, port, prompts, "forerun"))
    while replica_pids("forerun"):  # which end after their server
        time.sleep(1)
    with running(plain, START_SECONDS) as port:
        retried = asyncio.run(kill_meanwhile(args, port, prompts, "plain"))
    results = {
        "undisturbed": told(quiet, quiet),
        "forerun": told(disturbed, quiet),
        "ray_serve": told(retried, quiet),
    }
    for name, figure in results.items():
        print(f"{name:12} {figure}")
    ours_told = results["forerun"]
    holds = ours_told["different"] == ours_told["broken"] == ours_told["refused"] == 0
    print("✓" if holds else "✗", "every answer is whole and equal to the undisturbed one")
    settings = {
        "clients": args.clients,
        "seconds": args.seconds,
        "every": args.every,
        "requests": args.requests,
        "max_tokens": args.max_tokens,
        "drafters": DRAFTERS,
    }
    update("deaths", {"settings": settings, "holds": holds, "results": results})
    return holds


async def all_once(args: argparse.Namespace, port: int, prompts: list[str]) -> Toll:
    toll = Toll()
    numbers = iter(range(args.requests))

    async def client() -> None:
        for number in numbers:
            await one(args, port, prompts, number, toll)

    await asyncio.gather(*(client() for _ in range(args.clients)))
    return toll


async def kill_meanwhile(args: argparse.Namespace, port: int, prompts: list[str], app: str) -> Toll:
    """Keep all clients busy while replicas die; then let them finish."""
    toll = Toll()
    end = time.monotonic() + args.seconds
    numbers = cycle(range(args.requests))

    async def client() -> None:
        while time.monotonic() < end:
            await one(args, port, prompts, next(numbers), toll)

    async def killer() -> None:
        while time.monotonic() + args.every < end:
            await asyncio.sleep(args.every)
            if pids := replica_pids(app):  # of those that are ready
                os.kill(pids[0], signal.SIGKILL)
                toll.num_killed += 1

    await asyncio.gather(killer(), *(client() for _ in range(args.clients)))
    return toll


async def one(
    args: argparse.Namespace, port: int, prompts: list[str], number: int, toll: Toll
) -> None:
    stream = Stream(time.perf_counter())
    toll.num_asked += 1
    try:
        await ask(port, body_of(args, number, prompts), stream)
    except (RuntimeError, OSError, asyncio.IncompleteReadError, ValueError) as error:
        stream.is_whole = False
        toll.errors[f"{type(error).__name__}: {error}"[:200]] += 1
    if stream.is_whole:
        toll.texts.setdefault(number, []).append("".join(stream.texts))
        moments = [stream.asked, *stream.times]
        gaps = [later - sooner for sooner, later in pairwise(moments)]
        toll.pauses.append(max(gaps, default=0.0))
    elif stream.texts:
        toll.num_broken += 1
    else:
        toll.num_refused += 1
        await asyncio.sleep(0.2)


def told(toll: Toll, quiet: Toll) -> dict[str, Any]:
    different = sum(
        text != quiet.texts[number][0] for number, each in toll.texts.items() for text in each
    )
    return {
        "asked": toll.num_asked,
        "whole": sum(map(len, toll.texts.values())),
        "different": different,
        "broken": toll.num_broken,
        "refused": toll.num_refused,
        "killed": toll.num_killed,
        "longest_pause_s": round(max(toll.pauses, default=0.0), 2),
        "errors": dict(toll.errors.most_common(5)),
    }


def plain_server(args: argparse.Namespace) -> bool:
    """Our server as an ordinary application of Ray Serve, which knows nothing of answers."""
    import ray
    from ray import serve

    from forerun.scale.settings import ModelSettings
    from forerun.serve.http.assembly import make_server

    class ModelReplica:
        def __init__(self) -> None:
            target, drafters = ModelSettings(drafters=DRAFTERS).load()
            self._app, _ = make_server(target, drafters)

        def __serve_build_asgi_app__(self) -> Any:
            return self._app

    ray.init("local", include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    deployed = serve.deployment(
        serve.ingress()(ModelReplica),
        name="ModelReplica",
        num_replicas=2,
        max_ongoing_requests=16,
        health_check_period_s=1.0,
        ray_actor_options={"num_cpus": 1},
    )
    serve.run(deployed.bind(), name="plain", blocking=True)
    return True


# Speed


def speed(args: argparse.Namespace) -> bool:
    prompts, count = some_prompts(), counter()
    seconds = args.seconds / 3
    base = [sys.executable, "-m", "forerun.cli", "serve", "--port", "{port}"]
    on_ray = [*base, "--ray", "--replica-cpus", "1"]
    commands = {
        "none": base,
        "one": [*on_ray, "--replicas", "1"],
        "two": [*on_ray, "--replicas", "2"],
    }
    os.environ["OMP_NUM_THREADS"] = "1"  # what Ray gives a replica of one core
    names = list(commands)
    laps: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(running(command, START_SECONDS))
            for name, command in commands.items()
        }
        for lap in range(-1, args.laps):
            for name in names[lap % 3 :] + names[: lap % 3]:
                driven = asyncio.run(turn(args, ports[name], prompts, lap, seconds))
                if lap >= 0:
                    laps[name].append(figures([driven], count))
    results = {name: speed_of(laps, name) for name in names}
    for name, figure in results.items():
        print(name, figure)
    settings = {"clients": args.clients, "seconds": seconds, "laps": args.laps}
    cost = 1 - 1 / results["none"]["times_one_replica"]["median"]
    holds = cost <= MOST_COST
    print("✓" if holds else "✗", f"Ray costs {cost:.1%} of the tokens a second")
    update("speed", {"settings": settings, "holds": holds, "results": results})
    return holds


async def turn(
    args: argparse.Namespace, port: int, prompts: list[str], lap: int, seconds: float
) -> Turn:
    def body(number: int) -> Mapping[str, Any]:
        request = body_of(args, 0, prompts)
        place = 1000 * (lap + 1) + number
        content = prompts[place % len(prompts)]
        del request["speculation"]
        return {**request, "seed": place, "messages": [{"role": "user", "content": content}]}

    driven = await drive(port, body, args.clients, seconds)
    await asyncio.sleep(1)  # what was left open ends
    return driven


def speed_of(laps: Mapping[str, list[dict[str, Any]]], name: str) -> dict[str, Any]:
    speeds = {key: [lap["tokens_per_second"] for lap in each] for key, each in laps.items()}
    ratios = [own / one for own, one in zip(speeds[name], speeds["one"], strict=True)]
    return {"tokens_per_second": summary(speeds[name]), "times_one_replica": summary(ratios)}


def update(part: str, figures_of_part: Mapping[str, Any]) -> None:
    """Write one part of the results, and leave the other as it is."""
    path = result_file("scale")
    known = json.loads(path.read_text())["results"] if path.exists() else {}
    load = os.getloadavg()[0]
    save("scale", {"results": {**known, part: {"load_average": load, **figures_of_part}}})


if __name__ == "__main__":
    main()
