"""Loads a model onto several ranks, once it is sure that they are there and can share it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from forerun.base.errors import InputError, MissingExtraError, UnsupportedError, explain
from forerun.loading.bundled import local_copy
from forerun.loading.load import load as load_whole
from forerun.models.adapter import huggingface_model
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


QUERIES = ("q_proj", "qkv_proj", "query_key_value")
KEYS = ("k_proj", "qkv_proj", "query_key_value")
"""KEYS and QUERIES: the last parts of the names, in transformers, of the projections that give key
heads and query heads."""


def check_device(device: str | None, num_local: int) -> str:
    """The kind of device that ranks compute on: "cuda" or "cpu".

    num_local: the number of ranks on this machine.  Raises an error if there are too few GPUs.
    """
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = device or ("cuda" if num_gpus else "cpu")
    if kind not in ("cpu", "cuda"):
        cure = "Say cuda or cpu; rank i takes the i-th GPU, and CUDA_VISIBLE_DEVICES chooses them."
        raise InputError(explain("Ranks choose their own devices.", repr(device), cure))
    if kind == "cpu" and num_gpus:
        wrong = "transformers spreads a model over GPUs wherever there are any."
        cure = "Hide them with CUDA_VISIBLE_DEVICES= (empty) to compute on the CPU."
        raise UnsupportedError(explain(wrong, f"device cpu, {num_gpus} GPUs", cure))
    if kind == "cuda" and num_local > num_gpus:
        wrong = "There are fewer GPUs than ranks."
        received = f"{num_local} ranks on a machine with {num_gpus} GPUs"
        cure = f"Use --tensor-parallel {num_gpus}." if num_gpus > 1 else "Use one process."
        raise InputError(explain(wrong, received, cure))
    return kind


def check_count(num_ranks: int) -> None:
    """Raise InputError unless the number of ranks is 2 or more."""
    if type(num_ranks) is not int or num_ranks < 2:
        cure = "Use 2 or more; a model on one device needs no ranks."
        raise InputError(explain("A model is spread over several ranks.", num_ranks, cure))


def check_config(config: Any, name: str, num_ranks: int) -> None:
    """Raise UnsupportedError for a model that transformers has no plan to split, or whose heads do
    not divide evenly among the ranks."""
    config = config.get_text_config(decoder=True)
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not plan:
        wrong = "transformers has no tensor-parallel plan for this kind of model."
        cure = "Use one GPU, or a model of another kind (Llama, Qwen3, Gemma 3 and others)."
        raise UnsupportedError(explain(wrong, f"{name} ({config.model_type})", cure))
    for heads, projections in (("num_attention_heads", QUERIES), ("num_key_value_heads", KEYS)):
        is_split = any(
            module.rsplit(".", 1)[-1] in projections and style == "colwise"
            for module, style in plan.items()
        )
        counts = getattr(config, heads, None)
        for count in [counts] if isinstance(counts, int) else counts or ():
            if is_split and count % num_ranks:
                fitting = [n for n in range(2, count + 1) if _divides(config, n)]
                cure = f"Use {' or '.join(map(str, fitting)) or 'one GPU'}."
                wrong = f"The heads of a layer must divide evenly between ranks ({heads})."
                received = f"{count} heads of {name} over {num_ranks} ranks"
                raise UnsupportedError(explain(wrong, received, cure))


def _divides(config: Any, num_ranks: int) -> bool:
    counts = (getattr(config, heads, 0) for heads in ("num_attention_heads", "num_key_value_heads"))
    return all(count % num_ranks == 0 for count in counts if isinstance(count, int))
