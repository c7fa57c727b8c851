"""Asks the Hugging Face hub about a name, before anything large is imported."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from forerun.loading.bundled import installed_names

PATIENCE = 5.0  # seconds
TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""Patterns for the files of a tokenizer and for descriptions of a model."""
FOLDERS = "*/*"
"""Matches files in subfolders of a model, which are not downloaded: gpt-oss, for example, has its
weights there once more in layouts of other programs."""


def why_not(name: str, token: Any = None) -> str | None:
    """The reason why the hub does not serve a model; None if it does. It is asked once here,
    because the loader would retry for a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi(token=token).model_info(name, timeout=PATIENCE)
    except HFValidationError:
        return "names on the Hugging Face hub have the form owner/name"
    except RepositoryNotFoundError:
        return "the Hugging Face hub has no model of that name, or shows it only with a token"
    except Exception as error:  # of whichever HTTP library the hub's client uses
        return f"the Hugging Face hub cannot be reached ({type(error).__name__})"
    return None


def is_cached(name: str, cache_dir: Any = None) -> bool:
    """Whether anything of the model was downloaded before."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = "--".join(["models", *name.split("/")])
    return Path(cache_dir or HF_HUB_CACHE).expanduser().joinpath(folder).is_dir()


def packed_folder(name: str, **options: Any) -> Path | None:
    """Download a model whose config.json says that its weights have few bits; returns its folder.
    None for other models, which their own loader downloads.

    options: revision, token, cache_dir and local_files_only.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        file = hf_hub_download(name, "config.json", **options)
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except Exception:  # of the hub's client or a file; the loader will say what is wrong
        return None
    if "quantization_config" not in config:
        return None
    wanted = ["*.safetensors", *TEXTS]
    return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=FOLDERS, **options))


def without_hub(name: str) -> str:
    """A sentence that names the installed model that was probably meant, or all installed
    models."""
    known = {full.split("/")[-1].lower(): full for full in installed_names()}
    alike = get_close_matches(name.split("/")[-1].lower(), known, 1, cutoff=0.7)
    if alike and known[alike[0]] == name:
        return " Without a revision it is the one that is installed here."
    if alike:
        return f" Did you mean {known[alike[0]]}?"
    return f" Installed here: {', '.join(known.values())}." if known else ""
