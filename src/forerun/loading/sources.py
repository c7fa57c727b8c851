"""Finds the files of a model, and how the lean CPU pass reads them.

This needs neither torch nor transformers, so that later starts can do without them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from forerun.gguf.magic import parts_beside
from forerun.loading.bundled import gguf_file, local_copy
from forerun.loading.device_choice import usual_device
from forerun.loading.folders import TOKENIZERS, at_home, tokenizer_of

WIDE = ("auto", "float32")
"""The values of `dtype` with which every weight of a GGUF file keeps its exact value."""
DECIDING = ("*.json", "*.safetensors", "*.jinja", "additional_chat_templates/*", *TOKENIZERS)
"""Patterns for the files of a folder on which logits, tokens or prompts depend."""


class Source(NamedTuple):
    """The files of a model, and how to read them."""

    place: Path  # the GGUF file, or the folder
    files: tuple[Path, ...]  # all that decide on the model
    variant: str  # of the note: the options, and the names of files where they matter
    read: Callable[[], Any]  # its `FileModel`; None where transformers has to load it
    load_tokenizer: Callable[[], Any]  # transformers'
    load_plain: Callable[[], Any]  # the transformers model
    check: Callable[[], Any] = lambda: None  # raises for a damaged file, without transformers


def is_for_cpu(device: Any) -> bool:
    """Whether a model on this device could run on the lean CPU pass."""
    if importlib.util.find_spec("numba") is None:
        return False
    return str(device) == "cpu" or (device is None and usual_device() is None)


def source_of(name: str, dtype: Any) -> Source | None:
    """The files for a name; None if its weights are elsewhere or have to be rounded."""
    told = str(dtype or "auto").removeprefix("torch.")
    file = gguf_file(name)
    if file is not None:
        return _gguf(file, name) if told in WIDE else None
    folder = at_home(name)
    has_weights = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    if not has_weights or (folder / "adapter_config.json").exists():
        return None
    return _folder(folder, told)


def _gguf(file: Path, name: str) -> Source:
    files = parts_beside(file)

    def read() -> Any:
        from forerun.gguf.model import read_model

        return read_model(files[0])

    def load_plain() -> Any:
        return _plain(local_copy(name), "float32")

    def check() -> Any:
        from forerun.gguf.file import read_gguf

        return read_gguf(files[0])

    return Source(file, files, "gguf", read, lambda: read().tokenizer, load_plain, check)


def _folder(folder: Path, dtype: str) -> Source:
    found = {file for pattern in DECIDING for file in folder.glob(pattern) if file.is_file()}
    files = tuple(sorted(found))
    names = " ".join(file.relative_to(folder).as_posix() for file in files)

    def read() -> Any:
        from forerun.loading.folder_model import read_folder

        return read_folder(folder, dtype)

    load_plain = partial(_plain, folder, dtype)
    return Source(
        folder, files, f"{dtype} {names}", read, partial(tokenizer_of, folder), load_plain
    )


def _plain(folder: Path | None, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    from forerun.models.no_warnings import no_loading_bar

    with no_loading_bar():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()
