"""Checks a folder or a name before transformers looks for a model there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.gguf.magic import is_gguf

CONFIGS = ("config.json", "adapter_config.json")
"""Files that say what a model is; with none of them there is no model."""

TOKENIZERS = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "spiece.model",
    "sentencepiece*",
    "*.tiktoken",
    "tekken.json",
)
"""Files that some tokenizer is read from; with none of them there is no tokenizer."""


def at_home(name: str) -> Path:
    """A name as a path; a leading ~ is replaced by the home folder."""
    return Path(os.path.expanduser(name))


def check_name(name: str) -> None:
    """Refuse an empty name, a file that is not a model, and a path to a folder that does not
    exist."""
    if not name.strip():
        cure = "Name a folder, or a model on the Hugging Face hub."
        raise InputError(explain("No model is named.", "an empty text", cure))
    path = at_home(name)
    if is_gguf(path):
        return
    if path.is_file():
        cure = f"Name the folder that it is in: {str(Path(name).parent)!r}."
        raise InputError(explain("A model is a folder, or a GGUF file.", repr(name), cure))
    is_path = name.startswith((".", "~", "/", "\\")) or Path(name).is_absolute()
    if is_path and not path.exists():
        cure = f"Check the path; it is looked for from {str(Path.cwd())!r}."
        raise InputError(explain("There is no such folder.", repr(name), cure))


def check_folder(folder: Path) -> None:
    """Refuse a folder without a model, before its name is looked up on the hub."""
    if _has(folder, CONFIGS):
        return
    names = sorted(file.name for file in folder.iterdir())
    content = f"with {', '.join(names[:5])}{', ...' * (len(names) > 5)}" if names else "and empty"
    wrong = "The folder holds no model: config.json is missing."
    cure = "Name a folder with config.json and weights, as `save_pretrained` writes it."
    if gguf := next((name for name in names if name.lower().endswith(".gguf")), None):
        cure = f"Name the GGUF file itself: {str(folder / gguf)!r}."
    raise InputError(explain(wrong, f"the folder {str(folder)!r}, {content}", cure))


def tokenizer_of(place: str | Path, **options: Any) -> Any:
    """Load a model's tokenizer; None if its folder has none. The model then reads token ids
    only."""
    from transformers import AutoTokenizer

    folder = Path(place)
    if folder.is_dir() and not _has(folder, (*TOKENIZERS, "*.gguf")):
        return None
    return AutoTokenizer.from_pretrained(place, **options)


def _has(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)
