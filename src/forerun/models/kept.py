"""Models that the lean CPU pass has run before, started without torch and its model.

What is kept, and where, is said in `lean/keeping.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from forerun.models.place import usual_device


class Kept(NamedTuple):
    """A model folder and the options that change what is made of it."""

    folder: Path
    dtype: Any
    quantize: str | None

    @property
    def dtype_name(self) -> str:
        return str(self.dtype or "auto").removeprefix("torch.")

    def load(self) -> Any:
        """The transformers model itself."""
        from transformers import AutoModelForCausalLM

        from forerun.models.quiet import no_loading_bar

        with no_loading_bar():
            model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype or "auto")
        return model.eval()


def can_keep(place: Path, device: Any) -> bool:
    """Whether a model there would run on the CPU, from files that can be told apart."""
    if importlib.util.find_spec("numba") is None or not (place / "config.json").is_file():
        return False
    if not any(place.glob("*.safetensors")) or (place / "adapter_config.json").exists():
        return False
    return str(device) == "cpu" or (device is None and usual_device() is None)


def recall(kept: Kept, name: str) -> Any:
    """The `LeanModel` of the folder, if it was kept; None if not."""
    try:
        from forerun.lean import keeping
        from forerun.lean.model import LeanModel

        found = keeping.recall(kept.folder, kept.dtype_name, kept.quantize is not None)
        if found is None:
            return None
        tokenizer = _read_tokenizer(found.tokenizer, kept.folder)
    except (ImportError, OSError, ValueError):  # loading the model itself will say what is wrong
        return None
    name += f"-{kept.quantize}" if kept.quantize else ""
    return LeanModel.from_packed(found.packed, name, tokenizer, kept.load)


def keep(kept: Kept, model: Any) -> None:
    """Keep a model for the next time, if it is a `LeanModel`."""
    if type(model).__name__ == "LeanModel":
        from forerun.lean.keeping import KeptModel
        from forerun.lean.keeping import keep as keep_packed

        made = KeptModel(model.packed, _tokenizer_class(model.tokenizer, kept.folder))
        keep_packed(kept.folder, kept.dtype_name, kept.quantize is not None, made)


def _read_tokenizer(told: str, folder: Path) -> Any:
    if not told:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder)
    module, _, kind = told.partition(":")
    return getattr(importlib.import_module(module), kind).from_pretrained(folder)


def _tokenizer_class(tokenizer: Any, folder: Path) -> str:
    """module:class if that reads the same tokenizer as AutoTokenizer, whose import brings torch."""
    kind = type(tokenizer)
    told = f"{kind.__module__}:{kind.__name__}"
    if not told.startswith("transformers."):
        return ""
    try:
        again = _read_tokenizer(told, folder)
    except Exception:  # some classes are not for reading folders
        return ""
    return told if _description(again) == _description(tokenizer) else ""


def _description(tokenizer: Any) -> list[Any]:
    """All that decides what a tokenizer does."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = None if backend is None else backend.to_str()
    names = ("chat_template", "special_tokens_map", "model_max_length", "padding_side")
    more = ("clean_up_tokenization_spaces", "init_kwargs", "all_special_ids")
    return [words, *(str(getattr(tokenizer, name, None)) for name in (*names, *more))]
