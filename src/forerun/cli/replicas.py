"""`forerun simulate --replicas`: simulates queueing, autoscaling and failover of a fleet."""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.cli.flags.measuring import FLEET
from forerun.cli.lists import counts
from forerun.forecast.fleet_report import Shared, Size, as_dict, render
from forerun.forecast.fleet_simulation import Autoscale, Fleet, simulate_fleet

WEIGHTS_GB = 0.27  # of the default model in bfloat16
REQUESTS, REQUESTS_PER_ROW = 5_000, 8


def given(args: argparse.Namespace) -> list[str]:
    """The names of those fleet flags that the user gave."""
    return [name for name in FLEET if getattr(args, name) is not None]


def run(args: argparse.Namespace) -> int:
    """Simulate fleets of each size, and print a table or JSON."""
    values = {name: default for name, (_, default, _) in FLEET.items()}
    values |= {name: getattr(args, name) for name in given(args)}
    scale = _autoscale(values)
    numbers = counts("--replicas", args.replicas) if scale is None else [scale.most]
    if min(numbers) < 1:
        raise InputError(explain("--replicas is too small.", min(numbers), "Use 1 or more."))
    if values["rate"] is not None and len(numbers) > 1:
        cure = "Use --load, or one number of replicas."
        raise InputError(explain("One rate does not fit several sizes.", args.replicas, cure))
    weights = WEIGHTS_GB if args.weights_gb is None else args.weights_gb
    shared = Shared(values["ingress_us"] * 1e-6, weights, values["store_gbps"])
    sizes = [_size(replicas, values, scale, shared, args.seed) for replicas in numbers]
    print(json.dumps({**values, **as_dict(sizes)}) if args.json else render(sizes))
    return 0


def token_seconds(text: str) -> list[float]:
    """Parse `1:10,8:45` (answers at once : milliseconds): the seconds per token for 1, 2, ..., 8
    answers, interpolated."""
    try:
        pairs = [(int(size), float(ms)) for size, ms in (p.split(":") for p in text.split(","))]
        points = dict(sorted(pairs))
        if not points or min(points) != 1 or min(points.values()) <= 0:
            raise ValueError
    except ValueError as error:
        cure = "Write milliseconds by answers at once, from 1 on: 1:10,8:45."
        raise InputError(explain("--token-ms is no table.", repr(text), cure)) from error
    sizes = list(points)
    seconds = [points[1] / 1e3]
    for low, high in pairwise(sizes):
        slope = (points[high] - points[low]) / (high - low)
        seconds += [(points[low] + slope * (b - low)) / 1e3 for b in range(low + 1, high + 1)]
    return seconds


def _autoscale(values: dict[str, Any]) -> Autoscale | None:
    """The range given by `--autoscale`; None if the number of replicas is fixed."""
    text, target = values["autoscale"], values["target_ongoing"]
    if text is None:
        if target is not None:
            cure = "Add --autoscale 1:8."
            raise InputError(explain("--target-ongoing is for autoscaling.", target, cure))
        return None
    try:
        least, most = (int(part) for part in text.split(":"))
        if not 1 <= least <= most:
            raise ValueError
    except ValueError as error:
        cure = "Write the fewest and the most replicas: 1:8."
        raise InputError(explain("--autoscale is no range.", repr(text), cure)) from error
    return Autoscale(least, most, target or values["rows"] * 0.7)


def _size(
    replicas: int, values: dict[str, Any], scale: Autoscale | None, shared: Shared, seed: int
) -> Size:
    """Simulate a fleet with this many replicas; returns its results."""
    if values["failover"] not in ("exact", "again"):
        cure = "Use exact or again."
        raise InputError(explain("There is no such failover.", repr(values["failover"]), cure))
    hours, most = values["mtbf_hours"], values["max_queue"]
    options = {
        "rows": int(values["rows"]),
        "death_rate": 1 / (hours * 3600) if hours else 0.0,
        "autoscale": scale,
        **({} if most is None else {"max_queue": most}),
        **{
            name: values[name]
            for name in (
                "answer_tokens",
                "prompt_tokens",
                "prompt_cost",
                "start_seconds",
                "detect_seconds",
                "failover",
                "surge",
            )
        },
    }
    seconds = token_seconds(values["token_ms"])
    usual = replicas if scale is None else scale.least
    full = Fleet(replicas, 1.0, seconds, **options).capacity * usual
    rate = full * values["load"] if values["rate"] is None else values["rate"]
    fleet = Fleet(replicas, rate, seconds, **options)
    count = values["requests"] or REQUESTS + REQUESTS_PER_ROW * replicas * fleet.rows
    return Size(fleet, simulate_fleet(fleet, num_requests=int(count), seed=seed), shared)
