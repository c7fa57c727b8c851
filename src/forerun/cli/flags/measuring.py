"""The flags of commands that measure and forecast: `plan`, `sweep`, `plot`, `simulate`."""

from __future__ import annotations

import argparse
from typing import Any

from forerun.cli.flags.shared import add_rule, add_seed, add_subject, flag_of

PLAN_EXAMPLES = """examples:
  forerun plan                                                  a few minutes on two cores
  forerun plan --drafter suffix --per-group 1 --max-tokens 24             the quick form
  forerun plan Qwen/Qwen3-8B --drafter Qwen/Qwen3-0.6B ngram --prompts mine.jsonl --device cuda
  forerun plan ./my-model --drafter ngram --batch 8 --temperature 0.8 --json
  forerun plan Qwen/Qwen3-8B --drafter suffix ngram --for vllm > serve.sh
"""


def plan(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `plan`: what to measure, and which settings to consider."""
    parser.description = (
        "Time the passes of target and drafters, compute how often drafts would be "
        "accepted, and price every draft length from that."
    )
    parser.epilog = PLAN_EXAMPLES
    add_subject(parser, per_group=2)
    parser.add_argument("--batch", metavar="B", type=int, default=1, help="(default: 1)")
    parser.add_argument(
        "--temperature", metavar="T", type=float, default=0.0, help="(default: 0, greedy)"
    )
    parser.add_argument(
        "--rule",
        choices=("match", "ratio", "block"),
        action="append",
        help="consider only this one; repeatable (default: all lossless ones)",
    )
    parser.add_argument("--max-draft-length", metavar="K", type=int, default=8, help="(default: 8)")
    parser.add_argument(
        "--tree", metavar="N", default="", help="also trees of so many nodes: 16 or 8,16"
    )
    parser.add_argument(
        "--for",
        dest="engine",
        choices=("vllm", "sglang"),
        help="print the configuration of another engine, as a shell script with comments",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


SWEEP_EXAMPLES = """examples:
  forerun sweep --out sweep
  forerun sweep ./my-model --drafter ngram ./my-draft --draft-length 0..8 --out sweep
  forerun sweep --drafter ngram --batch 1,4,8 --temperature 0,0.8 --prompts spec_bench.jsonl \\
      --per-group 4 --repeats 3 --against transformers --out sweep
  forerun sweep --drafter suffix --draft-length 2..8 --out sweep --plot by-length.pdf
  forerun plot sweep

Kill it when you like: started again with the same words it goes on where it was.
"""


def sweep(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sweep`: the settings to combine, how often to run each, and where to save
    the records."""
    parser.description = (
        "Run every setting on the same prompts, in turns, and append each run to "
        "DIR/sweep.jsonl.  Plain decoding is always among them."
    )
    parser.epilog = SWEEP_EXAMPLES
    add_subject(parser, per_group=4)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write, or go on in")
    parser.add_argument(
        "--draft-length",
        metavar="K",
        default="0..8",
        help="a range 0..8 or a list 0,2,auto (default: 0..8)",
    )
    parser.add_argument(
        "--tree", metavar="N", default="", help="also trees of so many nodes: 16 or 8,16"
    )
    parser.add_argument("--batch", metavar="B", default="1", help="a list: 1,4,8 (default: 1)")
    parser.add_argument("--temperature", metavar="T", default="0", help="0,0.8 (default: 0)")
    add_rule(parser)
    parser.add_argument(
        "--repeats", metavar="N", default="1", help="3, or one for each batch: 5,2,2 (default: 1)"
    )
    parser.add_argument(
        "--against",
        metavar="PEER",
        action="append",
        choices=("transformers",),
        default=[],
        help="also run its plain, assisted and prompt-lookup modes: transformers",
    )
    parser.add_argument(
        "--no-predict", action="store_true", help="do not probe, nor predict, before the runs"
    )
    parser.add_argument(
        "--read-prompts-once",
        action="store_true",
        help="go on from a copy when a prompt comes again: faster, with the same text and speed; "
        "on the lean CPU pass only",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="spread the runs over the machines of a Ray cluster, which must be equal",
    )
    parser.add_argument(
        "--skip-corrupt", action="store_true", help="go on without lines that cannot be read"
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="at the end, also draw tokens per second and acceptance against K: .svg, .png or .pdf",
    )


PLOT_EXAMPLES = """examples:
  forerun plot sweep                        sweep/report.html, and SVG and PNG in sweep/plots
  forerun plot sweep --out figures          the same, elsewhere
  forerun plot sweep --skip-corrupt         without the lines that cannot be read
  forerun plot sweep --only by_draft_length --format pdf --size 3.3 --title "" --palette grey
"""


def plot(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `plot`: what to draw, and its format and size."""
    parser.description = "Draw what `forerun sweep` measured, finished or not."
    parser.epilog = PLOT_EXAMPLES
    parser.add_argument("folder", metavar="DIR", help="the folder that the sweep wrote (its --out)")
    parser.add_argument("--out", metavar="DIR", help="where the drawings go (default: beside it)")
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out unreadable lines")
    parser.add_argument(
        "--only",
        metavar="KIND",
        action="append",
        default=[],
        help="only plots of this kind, such as by_draft_length, and no report; repeatable",
    )
    parser.add_argument(
        "--format",
        metavar="F,F",
        default="svg,png",
        help="of the pictures: svg, png, pdf (default: svg,png)",
    )
    parser.add_argument(
        "--size",
        metavar="W[xH]",
        help="width of the pictures in inches, letters and all, or width and height: 3.3, 3.3x2.4",
    )
    parser.add_argument("--title", help='instead of the finding; "" for none')
    parser.add_argument(
        "--palette",
        choices=("okabe-ito", "tol", "grey"),
        default="okabe-ito",
        help="colours: two for all kinds of eyes, and greys (default: okabe-ito)",
    )


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

SIMULATE_EXAMPLES = """examples:
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


def simulate(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `simulate`: acceptance, costs and batches, or a fleet."""
    parser.description = "Simulate rounds from an acceptance rate and costs.  No model is run."
    parser.epilog = SIMULATE_EXAMPLES
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
            flag_of(name),
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
    add_seed(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--plot", metavar="FILE", help="also draw a picture: .svg, .png or .pdf")
    speculation = ("acceptance", "spread", "draft_length", "draft_cost", "target_cost", "overhead")
    others = (*speculation, "batch", "rounds", "plot", *(m for m in MACHINE if m != "weights_gb"))
    usual = {name: parser.get_default(name) for name in others}
    _add_replicas(parser)
    parser.set_defaults(usual=usual)


FLEET: dict[str, tuple[str, Any, str]] = {
    "load": (
        "X",
        0.7,
        "requests, as a share of what full replicas answer; of the fewest, if autoscaled",
    ),
    "rate": ("R", None, "requests a second of the whole fleet, instead of --load"),
    "rows": ("N", 8, "answers at once in a replica"),
    "token_ms": ("B:MS,...", "1:10.8,8:56", "a token of an answer, with B answers at once"),
    "answer_tokens": ("N", 100.0, "mean length; lengths are exponential"),
    "prompt_tokens": ("N", 200.0, "length"),
    "prompt_cost": ("X", 0.1, "reading a prompt token, in answer tokens"),
    "max_queue": ("N", None, "requests that may wait"),
    "start_seconds": ("S", 20.0, "until a new replica answers"),
    "mtbf_hours": ("H", 720.0, "between deaths of one replica; 0: none dies"),
    "detect_seconds": ("S", 1.0, "until a death is noticed"),
    "failover": ("KIND", "exact", "exact, or again: clients see an error and ask anew"),
    "autoscale": ("A:B", None, "from A to B replicas, instead of a fixed number"),
    "target_ongoing": ("X", None, "requests per replica that autoscaling aims at"),
    "surge": ("X", 1.0, "the rate in the middle third of the time, as a multiple"),
    "ingress_us": ("US", 50.0, "of a core of the ingress, per token"),
    "store_gbps": ("GB/s", 5.0, "of the store that weights come from"),
    "requests": ("N", None, "requests to simulate"),
}
"""The flags of the fleet simulation: for each name, the placeholder of its value, its default, and
its help text."""
SIZES = "1,10,100,1000"


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    """Add the flags that simulate a fleet behind one queue instead of one machine."""
    group = parser.add_argument_group(
        "replicas", "Instead of one machine, a fleet behind one queue; times are measured ones."
    )
    group.add_argument(
        "--replicas", metavar="N", nargs="?", const=SIZES, help=f"sizes of the fleet ({SIZES})"
    )
    for name, (metavar, default, text) in FLEET.items():
        text += "" if default is None else f" (default: {default})"
        kind = str if isinstance(default, str) or name == "autoscale" else float
        group.add_argument(flag_of(name), metavar=metavar, type=kind, help=text)
