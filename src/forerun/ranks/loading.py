"""Loads a model onto several ranks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from forerun.base.errors import InputError, MissingExtraError, UnsupportedError, explain
from forerun.loading.bundled import local_copy
from forerun.loading.load import load as load_whole
from forerun.models.adapter import huggingface_model
from forerun.ranks.checks import check_config, check_count, check_device
from forerun.ranks.meeting import (
    launched_ranks,
    place_by_torchrun,
    receive_ranks,
    start_ranks,
)
from forerun.ranks.model import TensorParallelModel
from forerun.ranks.ranks import LOAD_SECONDS, Ranks, enter_group

PASS_SECONDS = 300.0
"""The longest that one pass may take; after that, ranks are given up."""


def load(
    name: str,
    num_ranks: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    pass_seconds: float = PASS_SECONDS,
    **options: Any,
) -> TensorParallelModel:
    """A model over `num_ranks` processes; this one becomes rank 0 and starts the others.

    Under torchrun they exist already: there rank 0 calls this, the others `follow`.
    device: "cuda" (rank i takes the i-th GPU, over NCCL) or "cpu" (gloo); None for GPUs if any.
    pass_seconds: a pass that takes longer means that a rank is stuck, which ends the run.
    options: for `from_pretrained`; plain values, since they are sent to the other ranks.

    Close the result, or use it in a `with` statement, to end the ranks.
    """
    huggingface_model()
    check_count(num_ranks)
    _check_alone()
    launched = launched_ranks()
    num_local = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks)) if launched else num_ranks
    kind = check_device(device, num_local)
    check_config(_config(name, options), name, num_ranks)
    _check_extra()
    place = place_by_torchrun() if launched else start_ranks(num_ranks)
    try:
        wires = receive_ranks(place)
    except BaseException:
        place.end()
        raise
    ranks = Ranks(place, wires, pass_seconds)
    job = {
        "name": name,
        "kind": kind,
        "dtype": dtype,
        "options": options,
        "pass_seconds": pass_seconds,
    }
    try:
        with ranks.together("loading", job, seconds=LOAD_SECONDS):
            enter_group(place, kind)
            shard = load_shard(num_ranks, name, dtype, options)
    except BaseException:
        ranks.close()
        raise
    return TensorParallelModel(shard, ranks)


def load_shard(num_ranks: int, name: str, dtype: str | None, options: dict[str, Any]) -> Any:
    """This rank's part of the model, as a `HuggingFaceModel`.

    The trial passes that choose how rows are kept run here, on all ranks in step, so that no later
    call makes passes of its own.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    shard: Any = load_whole(
        name, dtype=dtype, lean=False, distributed_config=_plan(num_ranks), **options
    )
    _ = shard.scores_trees
    return shard


def _plan(num_ranks: int) -> Any:
    try:
        from transformers.distributed import DistributedConfig

        return DistributedConfig(tp_size=num_ranks, tp_plan="auto")
    except (ImportError, TypeError) as error:
        import transformers

        wrong = "This version of transformers has no DistributedConfig with tp_size."
        cure = "Install transformers 5.20 or newer."
        raise UnsupportedError(explain(wrong, transformers.__version__, cure)) from error


def _check_extra() -> None:
    if find_spec("accelerate") is None:
        wrong = "transformers needs accelerate to spread a model."
        cure = 'Install it with: pip install "forerun[parallel]"'
        raise MissingExtraError(explain(wrong, "an environment without it", cure))


def _check_alone() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        wrong = "A process takes part in one group of ranks at a time."
        cure = "Close the other model first."
        raise InputError(explain(wrong, "a process that is in a group", cure))


def _config(name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    shared = {key: options[key] for key in ("revision", "token", "cache_dir") if key in options}
    place = (None if "revision" in options else local_copy(name)) or name
    try:
        return AutoConfig.from_pretrained(place, **shared)
    except (OSError, ValueError) as error:
        wrong = "No configuration of a model could be read, in a folder or on the hub."
        line = (str(error).strip().splitlines() or [""])[0]
        cure = "Check the spelling, the connection, and that the folder holds config.json."
        raise InputError(explain(f"{wrong} The loader says: {line}", repr(name), cure)) from error
