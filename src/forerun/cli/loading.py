"""Loads models and drafters by their command-line names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.cli.screen import waiting_for
from forerun.drafters import Drafter
from forerun.generation.choosing import drafter_for, make_drafter
from forerun.gguf.magic import is_gguf
from forerun.loading.bundled import NAME, PACKAGES, packaged_parts
from forerun.loading.default import default_model
from forerun.loading.folders import at_home
from forerun.loading.lean_pass import KvDtype, Lean, Quantize
from forerun.loading.load import load
from forerun.models.adapter import huggingface_model
from forerun.models.base import LanguageModel


def load_target(
    name: str | None,
    device: str | None = None,
    dtype: str | None = None,
    lean: Lean = "auto",
    quantize: Quantize | None = None,
    num_ranks: int | None = None,
    gpu_memory: str | None = None,
    kv_dtype: KvDtype | None = None,
) -> Any:
    """Load the model with this name, or the default one. num_ranks: the number of processes to
    divide it among."""
    # Threads that spin while they wait starve each other on a machine with anything else to do:
    # passes then take ten times as long.  OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with waiting_for(f"Loading {name or NAME}"):
        if num_ranks is not None:
            return _spread(name or NAME, num_ranks, device, dtype, quantize, kv_dtype)
        try:
            how: Any = {"lean": lean, "quantize": quantize, "gpu_memory": gpu_memory}
            how["kv_dtype"] = kv_dtype
            if name is None:
                return default_model(device, dtype, **how)
            return load(name, device, dtype, **how)
        except (RuntimeError, AssertionError) as error:  # torch raises these for an unknown device
            if device is None:
                raise
            wrong = f"The model cannot be put on that device ({str(error).splitlines()[0]})"
            cure = "Use cpu, or a device that this build of torch can reach."
            raise InputError(explain(wrong, repr(device), cure)) from error


def _spread(
    name: str, num_ranks: int, device: str | None, dtype: str | None, quantize: Quantize | None,
    kv_dtype: KvDtype | None,
) -> Any:  # fmt: skip
    """Load a model divided among several processes with one GPU each."""
    huggingface_model()  # reports a missing extra before anything is imported from it
    from forerun import ranks

    if quantize is not None:
        wrong = "A model with rounded weights runs in one process."
        cure = "Leave out --quantize or --tensor-parallel."
        raise InputError(explain(wrong, f"--quantize {quantize}, {num_ranks} ranks", cure))
    if kv_dtype is not None:
        wrong = "A model with rounded keys and values runs in one process."
        cure = "Leave out --kv-dtype or --tensor-parallel."
        raise InputError(explain(wrong, f"--kv-dtype {kv_dtype}, {num_ranks} ranks", cure))
    return ranks.load(name, num_ranks, device, dtype)


def is_follower(num_ranks: int | None) -> bool:
    """Whether torchrun started this process only to hold a part of the target."""
    if num_ranks is None:
        return False
    huggingface_model()
    from forerun import ranks

    return ranks.is_follower(num_ranks)


def follow() -> int:
    """Serve rank 0 with this process's part of the target, until rank 0 ends."""
    from forerun import ranks

    return ranks.follow()


def weights_size(name: str | None) -> int | None:
    """The size of a model's weight files in bytes, about what it needs in memory; None if they are
    not on this machine yet.

    GGUF files count twice, because the scales of few-bit weights, and tables for them, are kept
    too.
    """
    path = at_home(name or NAME)
    if is_gguf(path):
        return 2 * path.stat().st_size
    if (name or NAME) in PACKAGES and (parts := packaged_parts(name or NAME)):
        return 2 * sum(part.stat().st_size for part in parts)
    folder = path if path.is_dir() else cached_folder(name or NAME)
    if folder is None:
        return None
    files = [file for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)]
    return sum(file.stat().st_size for file in files) or None


def cached_folder(name: str) -> Path | None:
    """The local folder of a Hugging Face model that was downloaded before; else None."""
    from huggingface_hub import try_to_load_from_cache

    found = None
    with suppress(ValueError):  # it cannot be the name of one
        found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def usual_drafters(target: str | None) -> list[str]:
    """The drafters that are compared by default: those that need neither training nor another
    model, and for the default model also its own."""
    return ["ngram", "suffix", *(["heads+suffix"] if target in (None, NAME) else [])]


def load_drafter(
    name: str | None, device: str | None = None, dtype: str | None = None
) -> Drafter | str | None:
    """Make a drafter from its name, which may be that of a model; None for `none`.

    "auto", the default, stays a string, because the choice depends on the target.
    """
    if name in (None, "auto"):
        return "auto"
    return make_drafter(name, lambda model: load_target(model, device, dtype))


def settled(
    drafters: Mapping[str, Drafter | str | None], target: LanguageModel
) -> dict[str, Drafter | None]:
    """All drafters by name, once the target is known. "auto" is replaced by the drafter that it
    stands for."""
    made: dict[str, Drafter | None] = {}
    for name, drafter in drafters.items():
        chosen = drafter_for(target, drafter)
        made[chosen.name if name == "auto" and chosen is not None else name] = chosen
    return made
