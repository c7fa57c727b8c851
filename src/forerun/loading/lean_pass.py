"""Chooses the pass of a loaded model: transformers', or a lean one if its extra is installed."""

from __future__ import annotations

import importlib.util
import re
from typing import Any, Literal

from forerun.base.errors import InputError, MissingExtraError, explain, warn

Lean = bool | Literal["auto"]
Quantize = Literal["int8"]
KvDtype = Literal["float8"]
UNITS = {"gib": 2**30, "mib": 2**20, "gb": 10**9, "mb": 10**6}
INSTALL = 'Install it with: pip install "forerun[cpu]"'


def memory_of(given: float | str | None) -> float | int | None:
    """Parse `gpu_memory` to a share of the device, or to bytes."""
    if given is None:
        return None
    wrong = "gpu_memory is a share of the device, or an amount."
    cure = "Use a share up to 1, such as 0.9, or an amount such as 40GiB."
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|MiB|GB|MB)?", str(given).strip(), re.IGNORECASE)
    if found is None or isinstance(given, bool):
        raise InputError(explain(wrong, repr(given), cure))
    number, unit = float(found[1]), found[2]
    if unit is not None:
        number *= UNITS[unit.lower()]
    if not number or (unit is None and number > 1):
        raise InputError(explain(wrong, repr(given), cure))
    return number if unit is None else int(number)


def check_pass(lean: Lean, quantize: Quantize | None) -> None:
    """Refuse contradictory options before a model is loaded."""
    if lean not in (True, False, "auto"):
        wrong, cure = "Unknown choice of the lean CPU pass.", 'Use "auto", True or False.'
        raise InputError(explain(wrong, repr(lean), cure))
    if quantize not in (None, "int8"):
        wrong, cure = "Unknown rounding of the weights.", 'Use "int8", or None to keep them.'
        raise InputError(explain(wrong, repr(quantize), cure))
    if quantize is not None and lean is False:
        wrong, cure = "Rounded weights need the lean CPU pass.", "Leave out one of the two."
        raise InputError(explain(wrong, f"lean=False and quantize={quantize!r}", cure))


def check_kv_dtype(kv_dtype: KvDtype | None, lean: Lean, quantize: Any, device: str) -> None:
    """Refuse rounded keys where they are not kept."""
    if kv_dtype not in (None, "float8"):
        wrong, cure = "Unknown rounding of keys and values.", 'Use "float8", or None to keep them.'
        raise InputError(explain(wrong, repr(kv_dtype), cure))
    is_served = lean is not False and quantize is None and device.startswith("cuda")
    if kv_dtype is not None and not is_served:
        wrong = "Only the lean GPU pass keeps keys and values in float8."
        received = f"device={device!r}, lean={lean!r}, quantize={quantize!r}"
        cure = "Leave out kv_dtype (--kv-dtype), or load the model on a CUDA device."
        raise InputError(explain(wrong, received, cure))


def with_pass(
    plain: Any,
    lean: Lean = "auto",
    quantize: Quantize | None = None,
    memory: float | int | None = None,
    kv_dtype: KvDtype | None = None,
) -> Any:
    """Return a loaded `HuggingFaceModel`, or the `LeanModel` or `GpuModel` made from it."""
    check_kv_dtype(kv_dtype, lean, quantize, str(plain.model.device))
    if quantize is None and plain.model.device.type == "cuda":
        from forerun.loading.gpu_pass import adopt

        return adopt(plain, lean, memory, kv_dtype)
    is_asked_for = lean is True or quantize is not None
    if not is_asked_for and lean is False:
        plain.why_not_lean = "lean=False asked for transformers"
        return plain
    if not is_asked_for and importlib.util.find_spec("numba") is None:
        from forerun.models.families import without_lean

        return without_lean(plain, f"Numba is not installed. {INSTALL}")
    try:
        from forerun.loading.cpu_pass import choose, rounded
    except ImportError as error:  # Numba is missing, or refuses the NumPy it finds
        if is_asked_for:
            wrong = f"The lean CPU pass needs Numba ({error})."
            raise MissingExtraError(explain(wrong, "an environment without it", INSTALL)) from error
        warn(f"The lean CPU pass is not used: {error}", UserWarning)
        plain.why_not_lean = str(error)
        return plain
    return choose(plain, lean) if quantize is None else rounded(plain)
