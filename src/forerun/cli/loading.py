"""Loads models and drafters by their command-line names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.cli.paint import waiting_for
from forerun.drafters import Drafter
from forerun.drafters.registry import FACTORIES
from forerun.generation.choosing import drafter_for, make_drafter
from forerun.loading.bundled import NAME
from forerun.loading.default import default_model
from forerun.loading.device_choice import DTYPES
from forerun.loading.lean_pass import Lean, Quantize
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
) -> Any:
    """The model of that name, or the default one; num_ranks: spread over so many processes."""
    # Threads that spin while they wait starve each other on a machine with anything else to do:
    # passes then take ten times as long.  OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with waiting_for(f"Loading {name or NAME}"):
        if num_ranks is not None:
            return _spread(name or NAME, num_ranks, device, dtype, quantize)
        try:
            if name is None:
                return default_model(device, dtype, lean=lean, quantize=quantize)
            return load(name, device, dtype, lean=lean, quantize=quantize)
        except (RuntimeError, AssertionError) as error:  # torch raises these for an unknown device
            if device is None:
                raise
            wrong = f"The model cannot be put on that device ({str(error).splitlines()[0]})"
            cure = "Use cpu, or a device that this build of torch can reach."
            raise InputError(explain(wrong, repr(device), cure)) from error


def _spread(
    name: str, num_ranks: int, device: str | None, dtype: str | None, quantize: Quantize | None
) -> Any:
    huggingface_model()  # a missing extra is told before anything is imported from it
    from forerun import ranks

    if quantize is not None:
        wrong = "A model with rounded weights runs in one process."
        cure = "Leave out --quantize or --tensor-parallel."
        raise InputError(explain(wrong, f"--quantize {quantize}, {num_ranks} ranks", cure))
    return ranks.load(name, num_ranks, device, dtype)


def add_place(group: argparse._ActionsContainer) -> None:
    """The flags for where the model runs, and in which numbers."""
    group.add_argument("--device", help="cpu, cuda, cuda:1, mps, ... (default: a GPU if any)")
    group.add_argument(
        "--dtype", choices=DTYPES, help="(default: the one the weights were saved in)"
    )


def add_pass(group: argparse._ActionsContainer) -> None:
    """The flags for how the target runs on a CPU."""
    group.add_argument(
        "--no-lean", action="store_true", help="run transformers' forward pass even where ours fits"
    )
    group.add_argument(
        "--quantize",
        choices=("int8",),
        help="round the target's weights to 8 bits, which makes it another model",
    )


def add_ranks(group: argparse._ActionsContainer) -> None:
    """The flag for models larger than one GPU."""
    group.add_argument(
        "--tensor-parallel",
        metavar="N",
        type=int,
        help="spread the target over N processes, one a GPU; also under torchrun",
    )


def is_follower(num_ranks: int | None) -> bool:
    """Whether torchrun started this process to hold a part of the target and no more."""
    if num_ranks is None:
        return False
    huggingface_model()
    from forerun import ranks

    return ranks.is_follower(num_ranks)


def follow() -> int:
    """Be such a process until rank 0 ends."""
    from forerun import ranks

    return ranks.follow()


MODELS = f"hub name, folder or GGUF file (default: {NAME})"
DRAFTERS = (
    f"auto, {', '.join(FACTORIES)}, a model, none, or several as a+b (default: auto, a trained "
    "drafter that fits the target with suffix, as heads+suffix for the default model, or suffix)"
)
"""What the help says about `--drafter`."""


def usual_drafters(target: str | None) -> list[str]:
    """The drafters compared by default: those that need neither training nor another model, and
    what the default model drafts with."""
    return ["ngram", "suffix", *(["heads+suffix"] if target in (None, NAME) else [])]


def load_drafter(
    name: str | None, device: str | None = None, dtype: str | None = None
) -> Drafter | str | None:
    """A drafter by its name, or a model as drafter; None for `none`.

    "auto", the default, stays a name: it depends on the target.
    """
    if name in (None, "auto"):
        return "auto"
    return make_drafter(name, lambda model: load_target(model, device, dtype))


def settled(
    drafters: Mapping[str, Drafter | str | None], target: LanguageModel
) -> dict[str, Drafter | None]:
    """The drafters by name for a target that is known by now; "auto" under the name it got."""
    made: dict[str, Drafter | None] = {}
    for name, drafter in drafters.items():
        chosen = drafter_for(target, drafter)
        made[chosen.name if name == "auto" and chosen is not None else name] = chosen
    return made
