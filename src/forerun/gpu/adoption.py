"""Whether to use the lean GPU pass for a model: it must fit and agree.

No time is measured: the two passes differ in the last bits, and a busy minute must not choose.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch

from forerun.errors import UnsupportedError, explain, warn
from forerun.models.agreement import Probe
from forerun.models.findings import LOCK
from forerun.models.forward import Forward


def adopt(plain: Any, lean: bool | Literal["auto"] = "auto") -> Any:
    """`plain`, a `HuggingFaceModel` on a CUDA device, or its `GpuModel`.

    With `lean="auto"` the lean pass is taken where it fits the model and reproduces it, and
    `plain.why_not_lean` has the reason where not; with True it is taken or refused.
    """
    reason = "lean=False asked for transformers" if lean is False else _why_not(plain)
    if not reason:
        from forerun.gpu.model import GpuModel

        try:
            with LOCK:
                candidate = GpuModel(plain.model, plain.tokenizer)
                shared = candidate.findings.device_pass
                if shared.reproduces is None:
                    shared.reproduces = _reproduces(plain, candidate)
        except (RuntimeError, MemoryError) as error:  # of Triton's compiler, or of CUDA
            if lean is True:
                raise
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            warn(f"The lean GPU pass is not used: {reason}")
        else:
            candidate.name = plain.name
            if shared.reproduces:
                return candidate
            reason = "it does not reproduce this model"
    if lean is True:
        wrong = f"The lean GPU pass cannot be used: {reason}."
        cure = "Use lean=False, or change what stands in its way."
        raise UnsupportedError(explain(wrong, type(plain.model).__name__, cure))
    plain.why_not_lean = reason
    return plain


def _why_not(plain: Any) -> str:
    """Why the pass cannot be used, as far as that can be told without running it."""
    if os.environ.get("FORERUN_KERNELS", "1") == "0":
        return "FORERUN_KERNELS=0 turned the kernels off"
    try:
        from forerun.gpu.weights import unfit
    except ImportError as error:
        return f'Triton is not installed ({error}). Install it with: pip install "forerun[gpu]"'
    return unfit(plain.model)


def _reproduces(plain: Any, candidate: Any) -> bool:
    with torch.inference_mode():
        probe = Probe(Forward(plain.model), plain.vocab_size)
        if not probe.agrees_with(candidate.start(2, 16)):
            return False
        return bool(probe.agrees_on_trees_with(candidate.start(2, 16)))
