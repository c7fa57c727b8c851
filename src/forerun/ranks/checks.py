"""Checks before any rank is started: enough GPUs, and a model that can be split."""

from __future__ import annotations

from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain

QUERIES = ("q_proj", "qkv_proj", "query_key_value")
KEYS = ("k_proj", "qkv_proj", "query_key_value")
"""QUERIES and KEYS: the last part of the names of projections to attention heads in
transformers."""


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
