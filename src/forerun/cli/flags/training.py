"""The flags of commands that make drafters: `train`, `export`."""

from __future__ import annotations

import argparse

from forerun.cli.flags.shared import add_model, add_seed

LAYOUTS = ("eagle3", "speculators")
"""The layouts in which other engines load drafters."""

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
