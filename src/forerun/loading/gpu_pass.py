"""Decides whether a model uses the lean GPU pass: it must support the model and reproduce its
logits.

Speed is not measured: the two passes differ in the last bits, and a busy minute must not decide
which one is used.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch

from forerun.base.errors import UnsupportedError, explain, notice, warn
from forerun.models.agreement import Probe
from forerun.models.forward import Forward
from forerun.models.trial_results import LOCK


def adopt(
    plain: Any,
    lean: bool | Literal["auto"] = "auto",
    memory: float | int | None = None,
    kv_dtype: Literal["float8"] | None = None,
) -> Any:
    """Return `plain`, a `HuggingFaceModel` on a CUDA device, or a `GpuModel` made from it.

    memory: how much of the device this process may fill, as a share or in bytes; None for the
    default.

    With `lean="auto"` the lean pass is used if it supports the model and reproduces it; otherwise
    `plain.why_not_lean` says why. With True it is used, or an error is raised.
    """
    reason = "lean=False asked for transformers" if lean is False else _why_not(plain)
    if not reason:
        try:
            from forerun.gpu.model import GpuModel

            with LOCK:
                candidate = GpuModel(plain.model, plain.tokenizer, kv_dtype)
                shared = candidate.findings.device_pass
                if shared.reproduces is None:
                    shared.reproduces = _reproduces(plain, candidate)
        except Exception as error:  # of Triton's compiler, of an older Triton, or of CUDA
            if lean is True or kv_dtype is not None:
                raise
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            warn(f"The lean GPU pass is not used: {reason}")
        else:
            candidate.name = plain.name
            if shared.reproduces:
                candidate.expect_rows(memory)
                if kv_dtype is not None:
                    rounded = f"keys and values are rounded to {kv_dtype} (e4m3, of scale 1)"
                    notice(f"{plain.name}: {rounded}, which is lossy: other texts than without")
                return candidate
            reason = "it does not reproduce this model"
            warn(f"The lean GPU pass is not used: {reason}")
    if lean is True or kv_dtype is not None:
        wrong = f"The lean GPU pass cannot be used: {reason}."
        cure = "Use lean=False, or change what stands in its way."
        if kv_dtype is not None:
            cure = "Leave out kv_dtype, or change what stands in its way."
        raise UnsupportedError(explain(wrong, type(plain.model).__name__, cure))
    plain.why_not_lean = reason
    return plain


def _why_not(plain: Any) -> str:
    """Why the pass cannot be used, as far as this is known without running it; empty if nothing is
    known."""
    if os.environ.get("FORERUN_KERNELS", "1") == "0":
        return "FORERUN_KERNELS=0 turned the kernels off"
    try:
        from forerun.gpu.weights import unfit
    except ImportError as error:
        return f'Triton is not installed ({error}). Install it with: pip install "forerun[gpu]"'
    return unfit(plain.model)


def _reproduces(plain: Any, candidate: Any) -> bool:
    """Whether the pass gives the model's logits, but for rounded keys, and the same bits in passes
    of all sizes."""
    exact, candidate = candidate.on_trial(is_lossless=True), candidate.on_trial()
    with torch.inference_mode():
        probe = Probe(Forward(plain.model), plain.vocab_size)
        if not probe.agrees_with(exact.start(2, 16)):
            return False
        return probe.agrees_on_trees_with(exact.start(2, 16)) and keeps_bits(candidate)


def keeps_bits(model: Any, count: int = 48, long: int = 300) -> bool:
    """Whether a text's logits have the same bits when it is fed token by token and in passes of
    other sizes, one padded by another row and one wide. This depends on how the device adds
    numbers."""
    text = [(7 + 7919 * (i + 1) ** 2) % model.vocab_size for i in range(long)]

    def fed(*sizes: int, beside: int = 0) -> Any:
        """The logits of the first tokens, and then of the last ones in each pass."""
        state, logits, at = model.start(2, long), [], 0
        for size in sizes:
            asked = min(size, count)
            rows, feeds, counts = [0], [text[at : at + size]], [asked]
            if beside:
                rows, feeds, counts = [0, 1], [*feeds, text[:beside]], [asked, 1]
            logits.append(model.score(state, rows, feeds, counts)[0, :asked])
            model.commit(state, rows, [len(feed) for feed in feeds])
            at += size
        return torch.cat(logits)

    alone = fed(*([1] * count))
    others = fed(16, 16, 16), fed(count), fed(count, beside=80)
    wide, narrow = fed(long), fed(100, 100, long - 200)
    return all(torch.equal(alone, other) for other in others) and torch.equal(
        wide, narrow[-len(wide) :]
    )
