"""Models that the lean CPU pass has run before, started without torch and transformers.

What is kept, and where, is said in `loading/packed_files.py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from forerun.loading import light_tokenizer
from forerun.loading.bundled import local_copy
from forerun.loading.device_choice import usual_device
from forerun.loading.light_tokenizer import LightTokenizer
from forerun.models.base import CpuPass


class Kept(NamedTuple):
    """A model folder and the options that change what is made of it."""

    folder: Path
    dtype: Any
    quantize: str | None

    @property
    def dtype_name(self) -> str:
        return str(self.dtype or "auto").removeprefix("torch.")

    def load_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    def load(self) -> Any:
        """The transformers model itself."""
        from transformers import AutoModelForCausalLM

        from forerun.models.no_warnings import no_loading_bar

        with no_loading_bar():
            model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype or "auto")
        return model.eval()


def can_keep(place: Path, device: Any) -> bool:
    """Whether a model there would run on the CPU, from files that can be told apart."""
    if not (place / "config.json").is_file() or (place / "adapter_config.json").exists():
        return False
    return any(place.glob("*.safetensors")) and is_for_cpu(device)


def is_for_cpu(device: Any) -> bool:
    """Whether a model that is put there could run on the lean CPU pass."""
    if importlib.util.find_spec("numba") is None:
        return False
    return str(device) == "cpu" or (device is None and usual_device() is None)


def from_gguf(file: Path, name: str) -> Any:
    """The `LeanModel` of a GGUF file; None if it has to be loaded in another way."""
    try:
        from forerun.loading import from_gguf

        return from_gguf.load(file, name, lambda: local_copy(name))
    except ImportError:  # loading the model itself will say what is wrong
        return None


def recall(kept: Kept, name: str) -> Any:
    """The `LeanModel` of the folder, if it was kept; None if not."""
    try:
        from forerun.lean.model import LeanModel
        from forerun.loading import packed_files

        found = packed_files.recall(kept.folder, kept.dtype_name, kept.quantize is not None)
        if found is None:
            return None
        is_light, load = found.tokenizer.words.size > 0, kept.load_tokenizer
        tokenizer = LightTokenizer(found.tokenizer, load) if is_light else load()
    except (ImportError, OSError, ValueError):  # loading the model itself will say what is wrong
        return None
    name += f"-{kept.quantize}" if kept.quantize else ""
    return LeanModel.from_packed(found.packed, name, tokenizer, kept.load)


def keep(kept: Kept, model: Any) -> str:
    """Keep a model for the next time, if it is on the CPU pass.  Returns why it was not kept."""
    if not isinstance(model, CpuPass):
        return ""
    from forerun.loading.packed_files import KeptModel
    from forerun.loading.packed_files import keep as keep_packed

    made = KeptModel(model.packed, light_tokenizer.of(model.tokenizer))
    return keep_packed(kept.folder, kept.dtype_name, kept.quantize is not None, made)
