"""Decides whether a model uses the lean CPU pass: it must support the model and reproduce its
logits.

The pass computes in float32 whatever the weights are, so it is compared with the model in float32.
Speed is not measured: the two passes differ in the last bits, and a busy minute must not decide
which one is used.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from forerun.base.errors import ForerunError, UnsupportedError, explain, warn
from forerun.lean.model import LeanModel
from forerun.lean.weights import unfit
from forerun.models.agreement import Probe
from forerun.models.families import without_lean
from forerun.models.forward import exact_forward


def choose(plain: Any, lean: bool | Literal["auto"] = "auto") -> Any:
    """Return `plain`, a `HuggingFaceModel`, or a `LeanModel` made from it.

    With `lean="auto"` the lean pass is used if it supports the model and reproduces it; otherwise
    `plain.why_not_lean` says why. With True it is used, or an error is raised.
    """
    if lean is False:
        return plain
    if lean == "auto" and (reason := unfit(plain.model)):
        return without_lean(plain, reason)
    try:
        candidate = LeanModel(plain.model, plain.tokenizer)
        is_same = reproduces(candidate, plain.model)
    except Exception as error:  # of the compiler on a processor it does not know, or no memory
        if lean is True and isinstance(error, ForerunError):
            raise
        if lean is True:
            wrong, cure = "The lean CPU pass failed on this model.", "Use lean=False."
            received = f"{type(error).__name__}: {error}"
            raise UnsupportedError(explain(wrong, received, cure)) from error
        warn(f"The lean CPU pass is not used: {error}", UserWarning)
        plain.why_not_lean = str(error)
        return plain
    if not is_same and lean == "auto":
        return without_lean(plain, "it does not reproduce this model")
    if not is_same:
        raise UnsupportedError(
            explain(
                "The lean CPU pass does not reproduce this model.",
                type(plain.model).__name__,
                "Use lean=False, and please report the model.",
            )
        )
    candidate.name = plain.name
    return candidate


def reproduces(candidate: LeanModel, plain: Any) -> bool:
    """Whether a candidate scores like `plain`, a transformers model."""
    with torch.inference_mode():
        probe = Probe(exact_forward(plain), candidate.vocab_size)
        return probe.agrees_with(candidate.start(2, 16))


def rounded(plain: Any) -> LeanModel:
    """The model with weights rounded to 8 bits, after checking that the lean pass reproduces the
    exact model."""
    choose(plain, lean=True)
    candidate = LeanModel(plain.model, plain.tokenizer, int8=True)
    candidate.name = f"{plain.name}-int8"
    return candidate
