"""Makes a `LanguageModel` from a name, a transformers model or a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.errors import InputError, MissingExtraError, explain, warn
from forerun.models.base import LanguageModel
from forerun.models.bundled import local_copy
from forerun.models.findings import findings_of
from forerun.models.function import FunctionModel
from forerun.models.lean_pass import Lean, Quantize, check_pass, with_pass
from forerun.models.quiet import no_loading_bar

if TYPE_CHECKING:
    from forerun.gpu.model import GpuModel
    from forerun.lean.model import LeanModel
    from forerun.models.huggingface import HuggingFaceModel


def load(
    name_or_path: str,
    device: Any = None,
    dtype: Any = None,
    *,
    lean: Lean = "auto",
    quantize: Quantize | None = None,
    **from_pretrained_kwargs: Any,
) -> HuggingFaceModel | LeanModel | GpuModel:
    """A causal language model and its tokenizer, from a directory or the Hugging Face hub.

    `dtype=None` keeps the precision the weights were saved in. Further arguments go to
    `AutoModelForCausalLM.from_pretrained`. The default model comes from its pip package where
    that is installed; naming a `revision` asks for the hub's.

    `device=None` takes the GPU where there is one.  On a CPU in float32, and on a GPU in bfloat16
    or float16, `lean="auto"` takes the lean pass where it fits the model and reproduces it; True
    insists on it, False keeps to transformers. `pass_name` of the result says which pass runs, and
    `why_not_lean` of a `HuggingFaceModel` why it is not the lean one.
    `quantize="int8"` rounds its weights to 8 bits: that is another target, and named so.

    The weights in the default model's pip package are the 4-bit numbers of a GGUF file, written
    out as float32; the hub's are bfloat16.
    """
    check_pass(lean, quantize)
    wrapper = huggingface_model()
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shared = {
        name: from_pretrained_kwargs[name]
        for name in ("revision", "token", "cache_dir", "local_files_only", "trust_remote_code")
        if name in from_pretrained_kwargs
    }
    place = (None if "revision" in shared else local_copy(str(name_or_path))) or name_or_path
    if not Path(place).exists() and not _hub_has(str(place), shared.get("token")):
        shared["local_files_only"] = from_pretrained_kwargs["local_files_only"] = True
    try:
        with no_loading_bar():
            tokenizer = AutoTokenizer.from_pretrained(place, **shared)
            model = AutoModelForCausalLM.from_pretrained(
                place, dtype=dtype or "auto", **from_pretrained_kwargs
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            explain(
                "No causal language model could be loaded: it was looked for as a directory and "
                f"on the Hugging Face hub. The loader says: {_first_line(error)}",
                repr(name_or_path),
                "Check the spelling, the connection, and that the directory holds config.json, "
                "weights and tokenizer.",
            )
        ) from error
    if device is not None:
        model = model.to(device)
    elif (
        "device_map" not in from_pretrained_kwargs
        and quantize is None
        and not (
            lean is True and model.dtype is torch.float32  # the lean pass for float32 is the CPU's
        )
    ):
        model = on_usual_device(model)
    loaded = wrapper(model.eval(), tokenizer)
    loaded.name = str(name_or_path)
    chosen: HuggingFaceModel | LeanModel | GpuModel = with_pass(loaded, lean, quantize)
    return chosen


def wrap(model: Any, tokenizer: Any = None) -> LanguageModel:
    """Any kind of model as a `LanguageModel`.

    A `LanguageModel` is returned unchanged, a transformers model is adapted, and any other
    callable is taken for a function from token ids to laws. A model is tried out the first time,
    and again only if it is run in another way since (device, dtype, attention, adapters). On a GPU
    it is run by the lean pass where that fits and reproduces it: the linear layers become views of
    larger matrices. The lean CPU pass copies the weights, so it is not taken here:
    `forerun.lean.model.LeanModel(model, tokenizer)` asks for it.
    """
    if isinstance(model, LanguageModel):
        return model
    if hasattr(model, "config") and hasattr(model, "forward"):
        wrapped = huggingface_model()(model, tokenizer)
        wrapped.findings = findings_of(model)
        return with_pass(wrapped) if wrapped.on_gpu else wrapped
    if callable(model):
        return FunctionModel(model)
    raise InputError(
        explain(
            "A model must be a transformers causal model, a function of token ids, or an object "
            "with the methods of LanguageModel.",
            f"{type(model).__name__}",
            "To load one by name, use forerun.load(name).",
        )
    )


def on_usual_device(model: Any) -> Any:
    """The model on the GPU where there is one that has room for it."""
    device = usual_device()
    if device is None:
        return model
    import torch

    try:
        return model.to(device)
    except torch.cuda.OutOfMemoryError:
        warn("The model stays on the CPU: the GPU has no room for it. device= chooses.")
        return model.to("cpu")


def usual_device() -> str | None:
    """The GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else None


def huggingface_model() -> type[HuggingFaceModel]:
    """The adapter class, imported on first use: torch and transformers are an optional extra."""
    try:
        from forerun.models.huggingface import HuggingFaceModel
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers"):
            raise
        raise MissingExtraError(
            explain(
                "Hugging Face models need torch and transformers.",
                f"an environment without {error.name}",
                'Install them with: pip install "forerun[hf]"',
            )
        ) from error
    return HuggingFaceModel


def _hub_has(name: str, token: Any) -> bool:
    """Ask the hub once whether it has the model; the loader would retry for a minute.

    If the hub does not answer, the local cache may still have the model.
    """
    from huggingface_hub import HfApi

    try:
        HfApi(token=token).model_info(name, timeout=5)
    except Exception:  # of whichever HTTP library the hub's client uses, or an impossible name
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
