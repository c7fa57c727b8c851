"""`forerun train`: trains a drafter for your own model on the model's own answers."""

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
    from forerun.scale.ray_train import TrainingOnRay


def run(args: argparse.Namespace) -> int:
    """Check the arguments, load the target, collect answers and train."""
    if args.model is None:
        cure = "Name it first: forerun train MODEL --prompts F --out DIR."
        raise InputError(explain("A drafter is trained for a model.", "none", cure))
    if (args.prompts is None) == (args.from_data is None):
        received = "neither" if args.prompts is None else "both"
        cure = "Pass --prompts F to collect answers, or --from-data DIR to use collected ones."
        raise InputError(explain("Either prompts or their answers are needed.", received, cure))
    _check_workers(args)
    if find_spec("torch") is None:
        cure = 'Install it with: pip install "forerun[hf]"'
        received = "an environment without torch"
        raise MissingExtraError(explain("Training needs torch.", received, cure))
    from forerun.train.blocks import BlockRecipe
    from forerun.train.course import Recipe
    from forerun.train.prompts import read_prompts
    from forerun.train.run import TrainOptions, train
    from forerun.train.run_folder import Beginning
    from forerun.train.training import usual_optimiser
    from forerun.train.unroll import HeadsRecipe

    recipe: Recipe = (
        BlockRecipe(args.block_size, args.layers, args.stride)
        if args.kind == BlockRecipe.kind
        else HeadsRecipe(args.unroll, args.later_steps)
    )
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
    target = _load(args.model, args.device)
    options = TrainOptions(
        out=Path(args.out),
        data=Path(args.from_data or args.out),
        prompts=prompts,
        held_out=held_out,
        num_answer_tokens=int(args.answer_tokens or (2e6 if collects_on_gpu else 1e5)),
        answer_limit=args.max_tokens,
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
        recipe=recipe,
        start=start,
        seed=args.seed,
        spread=spread,
        layout=args.format,
    )
    return train(target, options)


def _check_workers(args: argparse.Namespace) -> None:
    """Refuse flags of a Ray cluster that have no effect here."""
    if args.workers is not None and not args.ray:
        cure = "Add --ray, or leave it out."
        raise InputError(explain("--workers are those of a Ray cluster.", args.workers, cure))
    if args.ray and args.from_data:
        cure = "Leave it out: training runs here."
        raise InputError(explain("--ray is for collecting answers.", "--from-data", cure))


def _load(name: str, device: str) -> Any:
    """Load the target with transformers' pass, through which gradients can flow."""
    dtype = "bfloat16" if device.startswith("cuda") else "float32"
    return load_target(name, device, dtype, lean=False)


def _spread(args: argparse.Namespace) -> TrainingOnRay:
    """Connect to Ray before a model is loaded, so that a failure shows early."""
    from forerun.scale.ray_cluster import share_of_cluster, start_ray
    from forerun.scale.ray_train import TrainingOnRay

    num_workers = 1 if args.workers is None else args.workers
    share = share_of_cluster(start_ray(), num_workers, args.device)
    device = args.device or ("cuda" if share.num_gpus else "cpu")
    is_folder = Path(args.model).is_dir()
    name = str(Path(args.model).resolve()) if is_folder else args.model
    return TrainingOnRay(partial(_load, name, device), num_workers, share, _tell)


def _tell(note: str) -> None:
    """Print a note to standard error, where the progress bar is."""
    print(note, file=sys.stderr, flush=True)
