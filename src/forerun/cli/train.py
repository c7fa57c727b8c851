"""`forerun train`: a drafter for a model of your own, from its own answers."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.cli.loading import load_target

if TYPE_CHECKING:
    from forerun.scale.ray_train import SpreadOnRay

EXAMPLES = """examples:
  forerun train HuggingFaceTB/SmolLM2-135M-Instruct --prompts prompts.jsonl --out my-drafter
  forerun train ./my-model --prompts prompts.jsonl --out run --data-only
  forerun train ./my-model --from-data run --out my-drafter --seconds 1200 --device cuda
  forerun train /models/mine --prompts prompts.jsonl --out run --ray --workers 16
  forerun generate "Why is the sky blue?" --target ./my-model --drafter heads:my-drafter

Prompts are JSON lines, {"prompt": "..."}.  Killed or interrupted, the same command goes on where
it was.  Out of memory: lower --rows while answers are collected, --batch-tokens while it trains.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a drafter for a target on the target's own answers",
        description="Collect a target's answers and train a small drafter on them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="hub name or folder of a model like Llama, Qwen or GPT-2")
    parser.add_argument("--out", required=True, metavar="DIR", help="where all of it is written")
    parser.add_argument("--prompts", metavar="F", help="JSON lines to collect answers to")
    parser.add_argument("--held-out", metavar="F", help="prompts to measure with, by category")
    parser.add_argument("--device", help="cpu, cuda, ... (default: cuda where there is one)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")

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
        "--answer-limit", type=int, default=320, metavar="N", help="tokens of one (default: 320)"
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
    train.add_argument("--unroll", type=int, default=5, metavar="N", help="steps (default: 5)")
    train.add_argument(
        "--later-steps",
        choices=("fading", "reached"),
        default="fading",
        help="count for less, or where the guesses before them are right (default: fading)",
    )
    train.add_argument(
        "--start-from",
        metavar="DRAFTER",
        help="go on from this drafter's weights; heads is the one that comes with Forerun",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.prompts is None) == (args.from_data is None):
        received = "neither" if args.prompts is None else "both"
        cure = "Pass --prompts F to collect answers, or --from-data DIR to use collected ones."
        raise InputError(explain("Either prompts or their answers are needed.", received, cure))
    _check_workers(args)
    if find_spec("torch") is None:
        cure = 'Install it with: pip install "forerun[hf]"'
        received = "an environment without torch"
        raise MissingExtraError(explain("Training needs torch.", received, cure))
    from forerun.train.beginning import Beginning
    from forerun.train.optimiser import usual_optimiser
    from forerun.train.prompts import read_prompts
    from forerun.train.run import TrainOptions, train

    start = Beginning.named(args.start_from) if args.start_from else None
    usual_vocab = start.trained.design.num_tokens if start else 8192
    usual_mlp = start.trained.design.mlp_size if start else None
    prompts = read_prompts(args.prompts) if args.prompts else []
    held_out = read_prompts(args.held_out) if args.held_out else []
    spread = _spread(args) if args.ray else None
    if args.device is None:
        import torch

        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = args.device.startswith("cuda")
    collects_on_gpu = on_gpu if spread is None else spread.share.num_gpus > 0
    target = _load(args.target, args.device)
    options = TrainOptions(
        out=Path(args.out),
        data=Path(args.from_data or args.out),
        prompts=prompts,
        held_out=held_out,
        num_answer_tokens=int(args.answer_tokens or (2e6 if collects_on_gpu else 1e5)),
        answer_limit=args.answer_limit,
        data_seconds=args.data_seconds,
        num_rows=args.rows or (1024 if collects_on_gpu else 8),
        data_only=args.data_only,
        seconds=600.0 if args.seconds is None and args.steps is None else args.seconds,
        steps=args.steps,
        pause_after=args.pause_after,
        batch_tokens=args.batch_tokens or (32_768 if on_gpu else 2048),
        objective=args.objective,
        optimizer=args.optimizer or usual_optimiser(args.device),
        learning_rate=args.learning_rate,
        draft_vocab=args.draft_vocab or usual_vocab,
        mlp_size=args.mlp_size or usual_mlp,
        num_unrolled=args.unroll,
        later_steps=args.later_steps,
        start=start,
        seed=args.seed,
        spread=spread,
    )
    return train(target, options)


def _check_workers(args: argparse.Namespace) -> None:
    if args.workers is not None and not args.ray:
        cure = "Add --ray, or leave it out."
        raise InputError(explain("--workers are those of a Ray cluster.", args.workers, cure))
    if args.ray and args.from_data:
        cure = "Leave it out: training runs here."
        raise InputError(explain("--ray is for collecting answers.", "--from-data", cure))


def _load(name: str, device: str) -> Any:
    dtype = "bfloat16" if device.startswith("cuda") else "float32"
    return load_target(name, device, dtype, lean=False)


def _spread(args: argparse.Namespace) -> SpreadOnRay:
    """Connects to Ray; if that cannot be, before a model is loaded."""
    from forerun.scale.ray_cluster import share_of_cluster, start_ray
    from forerun.scale.ray_train import SpreadOnRay

    num_workers = 1 if args.workers is None else args.workers
    share = share_of_cluster(start_ray(), num_workers, args.device)
    device = args.device or ("cuda" if share.num_gpus else "cpu")
    is_folder = Path(args.target).is_dir()
    name = str(Path(args.target).resolve()) if is_folder else args.target
    return SpreadOnRay(partial(_load, name, device), num_workers, share, _tell)


def _tell(note: str) -> None:
    print(note, file=sys.stderr, flush=True)
