"""`forerun simulate`: does speculation pay here, and with which draft length?

With `--replicas` it simulates a fleet instead: see `cli/replicas.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.cli import replicas
from forerun.cli.lists import counts, numbers
from forerun.cli.paint import wants_colour
from forerun.forecast.costs import CostModel, Roofline
from forerun.forecast.report import as_dict, in_colour, plain_text, render
from forerun.forecast.simulator import scan
from forerun.theory.arguments import as_cost

EXAMPLES = """examples:
  forerun simulate
  forerun simulate --acceptance 0.7 --spread 0.2 --draft-cost 0.1
  forerun simulate --acceptance 0.85,0.8,0.7,0.6
  forerun simulate --target-cost 1,2.02,2.09,2.13,2.34 --draft-cost 0.02
  forerun simulate --weights-gb 140 --bandwidth 21 --tflops 4700 --kv-kib 320 --batch 1,8,64,512
  forerun simulate --plot speculation.svg
  forerun simulate --json | python -m json.tool
  forerun simulate --replicas 1,10,100 --rows 32 --token-ms 1:8,32:20
  forerun simulate --replicas 8 --failover again --mtbf-hours 1
  forerun simulate --replicas --autoscale 2:16 --surge 4
"""

MACHINE_NAME = "a datacentre GPU: an 8B model in bfloat16 on one NVIDIA H200"
MACHINE = {  # at 80% of its bandwidth and 60% of its arithmetic
    "weights_gb": 16.0,
    "bandwidth": 3.84,
    "tflops": 593.0,
    "kv_kib": 128.0,
    "context": 1024,
}
DRAFT_LENGTHS = "0..12"
BATCHES = "1,2,4,8,16,32,64,128,256,512"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="speed-up by draft length and batch, without running a model",
        description="Simulate rounds from an acceptance rate and costs.  No model is run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    draft = parser.add_argument_group("drafter")
    draft.add_argument(
        "--acceptance",
        metavar="RATES",
        default="0.8",
        help="one rate, or one per position given that it is reached: 0.85,0.8,0.7 (default: 0.8)",
    )
    draft.add_argument(
        "--spread",
        metavar="SD",
        type=float,
        default=0.0,
        help="standard deviation of the rate between easy and hard rounds (default: 0)",
    )
    draft.add_argument(
        "--draft-length",
        metavar="K",
        help=f"a range 0..8 or a list 0,2,4; 0 is always compared (default: {DRAFT_LENGTHS})",
    )
    draft.add_argument(
        "--draft-cost",
        metavar="C",
        type=float,
        default=0.05,
        help="one draft step, as a share of a target pass over one token (default: 0.05)",
    )

    machine = parser.add_argument_group(
        "machine",
        "A pass takes as long as the slower of reading bytes and doing arithmetic.  Defaults: "
        f"{MACHINE_NAME}, not this machine.",
    )
    units = {
        "weights_gb": ("GB", "weights of the target"),
        "bandwidth": ("TB/s", "achieved memory bandwidth"),
        "tflops": ("N", "achieved 16-bit arithmetic"),
        "kv_kib": ("KiB", "cache of one token"),
        "context": ("TOKENS", "tokens in the cache of each request"),
    }
    for name, (unit, text) in units.items():
        machine.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=unit,
            type=type(MACHINE[name]),
            help=f"{text} (default: {MACHINE[name]:g})",
        )
    machine.add_argument(
        "--batch",
        metavar="B",
        default=BATCHES,
        help=f"a range or a list of batch sizes (default: {BATCHES})",
    )
    machine.add_argument(
        "--target-cost",
        metavar="COSTS",
        help="instead of a machine: measured passes over 1, 2, 3, ... tokens, the first being 1",
    )
    machine.add_argument(
        "--overhead",
        metavar="C",
        type=float,
        default=0.0,
        help="what a round adds to its passes, as a share of one at batch 1 (default: 0)",
    )

    parser.add_argument(
        "--rounds", metavar="N", type=int, default=5000, help="rounds to draw (default: 5000)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="(default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--plot", metavar="FILE", help="also draw a picture, .svg or .png")
    speculation = ("acceptance", "spread", "draft_length", "draft_cost", "target_cost", "overhead")
    others = (*speculation, "batch", "rounds", "plot", *(m for m in MACHINE if m != "weights_gb"))
    usual = {name: parser.get_default(name) for name in others}
    replicas.add_arguments(parser)
    parser.set_defaults(run=run, usual=usual)


def run(args: argparse.Namespace) -> int:
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
    save = None if args.plot is None else _picture_saver(Path(args.plot))

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
    if save is not None:
        save(result, in_seconds=in_seconds)
        print(f"wrote {args.plot}", file=sys.stderr)
    return 0


def _check_kind(args: argparse.Namespace) -> None:
    """Refuse flags of a fleet without one, and flags of a single machine for a fleet."""
    if args.replicas is None:
        idle, cure = replicas.given(args), "Add --replicas, or drop these."
        wrong = "Some flags are for a fleet of replicas."
    else:
        idle = [name for name, value in args.usual.items() if getattr(args, name) != value]
        wrong, cure = "A fleet's times are measured ones: --token-ms.", "Drop these."
    if idle:
        raise InputError(explain(wrong, ", ".join(map(_flag, idle)), cure))


def _costs(args: argparse.Namespace) -> tuple[CostModel, int]:
    """The cost model, and the longest draft it covers."""
    given = _given(args)
    if args.target_cost is not None:
        if clash := [*given, *(["batch"] if args.batch != BATCHES else [])]:
            flags = ", ".join(_flag(name) for name in clash)
            cure = "Drop --target-cost to model a machine, or drop these."
            wrong = "--target-cost is one measured machine at one batch."
            raise InputError(explain(wrong, f"it and {flags}", cure))
        table = numbers("--target-cost", args.target_cost)
        if len(table) == 1:
            return CostModel(args.draft_cost, table[0], args.overhead), sys.maxsize
        return CostModel(args.draft_cost, table, args.overhead), len(table) - 1
    for name, value in given.items():
        as_cost(_flag(name), value, may_be_zero=name in ("kv_kib", "context"))
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
    return {name: getattr(args, name) for name in MACHINE if getattr(args, name) is not None}


def _headline(args: argparse.Namespace) -> str:
    spread = f" (spread {args.spread:g})" if args.spread else ""
    machine = "target costs as given"
    if args.target_cost is None:
        machine = (
            "target: {weights_gb:g} GB of weights, {bandwidth:g} TB/s, {tflops:g} Tflop/s, "
            "{context:g} tokens of context at {kv_kib:g} KiB"
        ).format(**MACHINE | _given(args))
        given = _given(args)
        if len(given) < len(MACHINE):
            rest = "what you did not give is" if given else "these are the defaults:"
            machine += f"\n{rest} {MACHINE_NAME}"
    return (
        f"draft: acceptance {args.acceptance}{spread}, a step costs {args.draft_cost:g} of a pass\n"
        f"{machine}\n"
        f"{args.rounds:,} rounds, seed {args.seed}; in brackets: 95% intervals at so many rounds"
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _picture_saver(path: Path) -> Callable[..., None]:
    """What will draw to `path`; a bad destination or a missing matplotlib is refused here."""
    if path.suffix.lower() not in {".svg", ".png"}:
        cure = "End the name in .svg or .png."
        raise InputError(explain("--plot draws SVG and PNG.", repr(str(path)), cure))
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        cure = "Choose a file in an existing folder that you may write to."
        wrong = f"--plot cannot be written ({error.strerror})."
        raise InputError(explain(wrong, repr(str(path)), cure)) from error
    if is_new:
        path.unlink()
    from forerun.forecast.picture import save_picture

    return partial(save_picture, path=path)


def _print(text: str) -> None:
    """Print where the terminal's encoding may lack the curve's characters."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
