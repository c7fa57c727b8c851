"""The flags of commands that measure, forecast and train: `plan`, `sweep`, `plot`, `simulate`,
`train`, `export`."""

from __future__ import annotations

import argparse
from typing import Any

from forerun.cli.flags.shared import (
    add_model,
    add_rule,
    add_seed,
    add_subject,
    flag_of,
)

LAYOUTS = ("eagle3", "speculators")
"""The layouts in which other engines load drafters."""

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


TRAIN_EXAMPLES = """examples:
  forerun train HuggingFaceTB/SmolLM2-135M-Instruct --prompts prompts.jsonl --out my-drafter
  forerun train ./my-model --prompts prompts.jsonl --out run --data-only
  forerun train ./my-model --from-data run --out my-drafter --seconds 1200 --device cuda
  forerun train /models/mine --prompts prompts.jsonl --out run --ray --workers 16
  forerun generate ./my-model "Why is the sky blue?" --drafter heads:my-drafter

Prompts are JSON lines, {"prompt": "..."}.  Killed or interrupted, the same command goes on where
it was.  Out of memory: lower --rows while answers are collected, --batch-tokens while it trains.
"""


def train(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `train`: which answers to collect, and how to train a drafter on them."""
    parser.description = "Collect a target's answers and train a small drafter on them."
    parser.epilog = TRAIN_EXAMPLES
    add_model(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="where all of it is written")
    parser.add_argument("--prompts", metavar="F", help="JSON lines to collect answers to")
    parser.add_argument("--held-out", metavar="F", help="prompts to measure with, by category")
    parser.add_argument("--device", help="cpu, cuda, ... (default: cuda where there is one)")
    add_seed(parser)

    data = parser.add_argument_group("answers")
    only = data.add_mutually_exclusive_group()
    only.add_argument("--data-only", action="store_true", help="collect answers, do not train")
    only.add_argument("--from-data", metavar="DIR", help="train on answers collected there")
    data.add_argument(
        "--answer-tokens", type=float, metavar="N", help="to collect (default: 2e6; on a CPU 1e5)"
    )
    data.add_argument(
        "--data-seconds", type=float, metavar="S", help="stop collecting after this long"
    )
    data.add_argument(
        "--max-tokens",
        "--answer-limit",
        type=int,
        default=320,
        metavar="N",
        help="new tokens of an answer, at most (default: 320)",
    )
    data.add_argument(
        "--rows", type=int, metavar="N", help="conversations at once, in each worker on Ray"
    )
    data.add_argument(
        "--ray", action="store_true", help="collect on a Ray cluster; training runs here"
    )
    data.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="of the Ray cluster, each with the target loaded (default: 1)",
    )

    train = parser.add_argument_group("training")
    train.add_argument("--seconds", type=float, metavar="S", help="train this long (default: 600)")
    train.add_argument("--steps", type=int, metavar="N", help="train so many steps")
    train.add_argument(
        "--pause-after",
        type=float,
        metavar="S",
        help="stop after this long; the same command resumes",
    )
    train.add_argument("--batch-tokens", type=int, metavar="N", help="per step, padding included")
    train.add_argument("--objective", default="kl", help="kl, tv, top1 or mix (default: kl)")
    train.add_argument(
        "--optimizer",
        choices=("muon", "adamw"),
        help="(default: muon; adamw on a CPU that has no products in bfloat16)",
    )
    train.add_argument("--learning-rate", type=float, default=1e-3, help="(default: 0.001)")
    train.add_argument("--draft-vocab", type=int, metavar="N", help="(default: 8192)")
    train.add_argument("--mlp-size", type=int, metavar="N", help="(default: the target's)")
    train.add_argument(
        "--kind",
        choices=("heads", "block"),
        default="heads",
        help="one layer that goes on from its own outputs, or all guesses in one pass "
        "(default: heads)",
    )
    train.add_argument(
        "--unroll", type=int, default=5, metavar="N", help="steps of heads (default: 5)"
    )
    train.add_argument(
        "--block-size", type=int, default=8, metavar="N", help="guesses of a block (default: 8)"
    )
    train.add_argument(
        "--layers", type=int, default=4, metavar="N", help="of a block drafter (default: 4)"
    )
    train.add_argument(
        "--stride", type=int, default=3, metavar="N",
        help="train on a block after every N tokens (default: 3)",
    )  # fmt: skip
    train.add_argument(
        "--later-steps",
        choices=("fading", "reached"),
        default="fading",
        help="of heads: count for less, or where the guesses before them are right "
        "(default: fading)",
    )
    train.add_argument(
        "--start-from",
        metavar="DRAFTER",
        help="go on from this drafter's weights; heads is the one that comes with Forerun",
    )
    train.add_argument(
        "--format",
        choices=LAYOUTS,
        help="also write it for other engines, into a folder of that name in DIR",
    )


EXPORT_EXAMPLES = """examples:
  forerun export my-drafter --format eagle3 --out my-drafter/eagle3        for vLLM and SGLang
  forerun export my-drafter --format speculators --out my-drafter/speculators
  forerun export heads --format eagle3 --out smollm2-eagle3          the drafter that comes along
  vllm serve ./my-model --speculative-config \\
    '{"method": "eagle3", "model": "my-drafter/eagle3", "num_speculative_tokens": 4}'
"""


def export(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `export`: a drafter, and the folder to write."""
    parser.description = "Write a drafter of `forerun train` as an EAGLE-3 head that others load."
    parser.epilog = EXPORT_EXAMPLES
    parser.add_argument("drafter", help="folder or hub name; heads is the one that comes along")
    parser.add_argument(
        "--format",
        required=True,
        choices=LAYOUTS,
        help="eagle3: flat files for vLLM and SGLang; speculators: the layout of that library, "
        "for vLLM",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=("bfloat16", "float16", "float32"),
        help="(default: bfloat16)",
    )
