"""Models by what a command line calls them."""

from __future__ import annotations

import os
from typing import Any

from forerun.cli.terminal import waiting_for
from forerun.drafters import Drafter, Model, NGram
from forerun.errors import InputError, explain
from forerun.models.bundled import NAME
from forerun.models.default import default_model
from forerun.models.load import huggingface_model, load


def load_target(name: str | None, device: str | None = None, dtype: str | None = None) -> Any:
    """The model of that name, or the default one."""
    # Threads that spin while they wait starve each other on a machine with anything else to do:
    # passes then take ten times as long.  OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with waiting_for(f"Loading {name or NAME}"):
        huggingface_model()  # a missing extra is told before anything is imported from it
        from transformers.utils import logging

        logging.disable_progress_bar()
        try:
            if name is None:
                return default_model(device, dtype or "float32")
            return load(name, device, dtype)
        except (RuntimeError, AssertionError) as error:  # torch's ways to say: no such device
            if device is None:
                raise
            wrong = f"The model cannot be put on that device ({str(error).splitlines()[0]})"
            cure = "Use cpu, or a device that this build of torch can reach."
            raise InputError(explain(wrong, repr(device), cure)) from error


def load_drafter(name: str, device: str | None = None, dtype: str | None = None) -> Drafter | None:
    """`ngram`, `none`, or a model."""
    if name in ("ngram", "none"):
        return NGram() if name == "ngram" else None
    return Model(load_target(name, device, dtype))
