"""`forerun simulate`: computes whether speculation pays, and with which draft length.

With `--replicas` it simulates a fleet instead: see `cli/replicas.py`.
"""

from __future__ import annotations

import argparse
import json
import sys

from forerun.base.errors import InputError, explain
from forerun.cli import replicas
from forerun.cli.flags.measuring import BATCHES, DRAFT_LENGTHS, MACHINE, MACHINE_NAME
from forerun.cli.flags.shared import flag_of
from forerun.cli.lists import counts, numbers, picture_path
from forerun.cli.screen import wants_colour
from forerun.forecast.costs import CostModel, Roofline
from forerun.forecast.report import as_dict, in_colour, plain_text, render
from forerun.forecast.simulator import scan
from forerun.theory.arguments import as_cost


def run(args: argparse.Namespace) -> int:
    """Compare draft lengths and batch sizes, and print tables, JSON or a picture; or simulate a
    fleet."""
    _check_kind(args)
    if args.replicas is not None:
        return replicas.run(args)
    rates = numbers("--acceptance", args.acceptance)
    costs, longest = _costs(args)
    asked = args.draft_length
    lengths = counts("--draft-length", DRAFT_LENGTHS if asked is None else asked)
    if asked is None:  # the default range gives way to listed rates and costs
        longest = min(longest, len(rates)) if len(rates) > 1 else longest
        lengths = [k for k in lengths if k <= longest]
    in_seconds = args.target_cost is None
    batches = counts("--batch", args.batch) if in_seconds else [1]
    path = None if args.plot is None else picture_path(args.plot)

    acceptance = rates if len(rates) > 1 else rates[0]
    luck = {"rounds": args.rounds, "seed": args.seed, "spread": args.spread}
    result = scan(acceptance, costs, draft_lengths=lengths, batches=batches, **luck)

    if args.json:
        target = args.target_cost or MACHINE | _given(args)
        prices = {"draft_cost": args.draft_cost, "target": target, "overhead": args.overhead}
        inputs = {"acceptance": acceptance, **prices, **luck}
        print(json.dumps({**inputs, **as_dict(result, in_seconds=in_seconds)}))
    else:
        paint = in_colour if wants_colour() else plain_text
        _print(_headline(args) + "\n\n" + render(result, in_seconds=in_seconds, paint=paint))
    if path is not None:
        from forerun.forecast.picture import save_picture

        save_picture(result, path, in_seconds=in_seconds)
        print(f"wrote {args.plot}", file=sys.stderr)
    return 0


def _check_kind(args: argparse.Namespace) -> None:
    """Refuse fleet flags without `--replicas`, and with it the flags of a single machine."""
    if args.replicas is None:
        idle, cure = replicas.given(args), "Add --replicas, or drop these."
        wrong = "Some flags are for a fleet of replicas."
    else:
        idle = [name for name, value in args.usual.items() if getattr(args, name) != value]
        wrong, cure = "A fleet's times are measured ones: --token-ms.", "Drop these."
    if idle:
        raise InputError(explain(wrong, ", ".join(map(flag_of, idle)), cure))


def _costs(args: argparse.Namespace) -> tuple[CostModel, int]:
    """The cost model, and the longest draft length that it covers."""
    given = _given(args)
    if args.target_cost is not None:
        if clash := [*given, *(["batch"] if args.batch != BATCHES else [])]:
            flags = ", ".join(flag_of(name) for name in clash)
            cure = "Drop --target-cost to model a machine, or drop these."
            wrong = "--target-cost is one measured machine at one batch."
            raise InputError(explain(wrong, f"it and {flags}", cure))
        table = numbers("--target-cost", args.target_cost)
        if len(table) == 1:
            return CostModel(args.draft_cost, table[0], args.overhead), sys.maxsize
        return CostModel(args.draft_cost, table, args.overhead), len(table) - 1
    for name, value in given.items():
        as_cost(flag_of(name), value, may_be_zero=name in ("kv_kib", "context"))
    machine = MACHINE | given
    target = Roofline(
        weight_bytes=machine["weights_gb"] * 1e9,
        bandwidth=machine["bandwidth"] * 1e12,
        compute=machine["tflops"] * 1e12,
        kv_bytes_per_token=machine["kv_kib"] * 1024,
        context=int(machine["context"]),
    )
    return CostModel(args.draft_cost, target, args.overhead * target(1, 1)), sys.maxsize


def _given(args: argparse.Namespace) -> dict[str, float]:
    """The machine's parameters that the user gave."""
    return {name: getattr(args, name) for name in MACHINE if getattr(args, name) is not None}


def _headline(args: argparse.Namespace) -> str:
    """The lines above the tables: what the numbers are about, and the assumptions."""
    spread = f" (spread {args.spread:g})" if args.spread else ""
    head, machine = "", "target costs as given"
    if args.target_cost is None:
        machine = (
            "target: {weights_gb:g} GB of weights, {bandwidth:g} TB/s, {tflops:g} Tflop/s, "
            "{context:g} tokens of context at {kv_kib:g} KiB"
        ).format(**MACHINE | _given(args))
        given = _given(args)
        if not given:
            head = (
                "On paper, and not of this machine, which forerun plan measures.  The figures are\n"
                f"those of {MACHINE_NAME}.\n\n"
            )
        elif len(given) < len(MACHINE):
            machine += f"\nwhat you did not give is {MACHINE_NAME}"
    return (
        f"{head}draft: acceptance {args.acceptance}{spread}, "
        f"a step costs {args.draft_cost:g} of a pass\n"
        f"{machine}\n"
        f"{args.rounds:,} rounds, seed {args.seed}; in brackets: 95% intervals at so many rounds"
    )


def _print(text: str) -> None:
    """Print text, replacing characters that the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
