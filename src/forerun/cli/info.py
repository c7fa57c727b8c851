"""`forerun info`: prints machine, versions and caches, for bug reports; `--clear-cache` clears
them."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from forerun.base.errors import InputError, explain
from forerun.loading.bundled import NAME, PACKAGES, packaged_weights
from forerun.loading.cache import cache_folder, why_not_cached
from forerun.measure.machine import this_machine

TITLES = "|".join(re.escape(package.title) for package in PACKAGES.values())
CONVERTED = re.compile(rf"({TITLES}|.+-[0-9a-f]{{16}})-\d+(\..+)?")
"""Matches the names of folders with converted models, including unfinished ones."""
FILES = {
    "packed": re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}.*"),
    "contents": re.compile(r"[0-9a-f]{32}\..+"),
}
"""Folders in the cache, each with a pattern for the names of the files that we put there."""


def clear_cache(*, is_agreed: bool) -> int:
    """List what the cache contains and remove it, after asking unless `is_agreed`. Returns the exit
    status."""
    folder, made = cache_folder(), list(_made(cache_folder()))
    if not made:
        print(f"Forerun has made nothing in {folder}.")
        return 0
    sizes = {path: _bytes(path) for path in made}
    groups: dict[str, int] = {}
    for path, size in sizes.items():
        name = path.name if path.parent == folder else path.parent.name
        groups[name] = groups.get(name, 0) + size
    print(f"Forerun made this in {folder}, and makes it again when it is needed:")
    for name, size in groups.items():
        print(f"  {size / 1e6:>8,.0f} MB  {name}")
    if not is_agreed and not _agrees():
        print("Nothing was removed.")
        return 1
    for path in made:
        with suppress(FileNotFoundError):  # another process may have removed it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"Removed {sum(sizes.values()) / 1e6:,.0f} MB.")
    return 0


def _agrees() -> bool:
    """Ask the user whether to continue; raises if there is no terminal."""
    if not sys.stdin.isatty():
        wrong, cure = "Nobody can be asked whether to remove this.", "Add --yes to remove it."
        raise InputError(explain(wrong, "no terminal", cure))
    return input("Remove it? [y/N] ").strip().lower() in ("y", "yes")


def _made(folder: Path) -> Iterator[Path]:
    """The files and folders in the cache that Forerun made; symbolic links are left alone."""
    for child in sorted(folder.iterdir()) if folder.is_dir() else ():
        if child.is_symlink() or not child.is_dir():
            continue
        if child.name in FILES:
            for file in sorted(child.iterdir()):
                if FILES[child.name].fullmatch(file.name) and not file.is_symlink():
                    yield file
        elif CONVERTED.fullmatch(child.name):
            yield child


def _bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())


EXTRAS = {
    "hf": ("torch", "transformers", "safetensors", "gguf"),
    "cpu": ("numba",),
    "gpu": ("torch", "triton"),
    "grammar": ("llguidance",),
    "serve": ("starlette", "uvicorn", "prometheus_client"),
    "plot": ("matplotlib",),
}
"""The modules that each extra brings."""


def run(args: argparse.Namespace) -> int:
    """Print the report, or clear the cache."""
    if args.clear_cache:
        return clear_cache(is_agreed=args.yes)
    told = report()
    print(json.dumps(told) if args.json else render(told))
    return 0


def report() -> dict[str, Any]:
    """All facts of the report, by heading."""
    machine = this_machine()
    devices = _devices()
    processor = dict.fromkeys([machine.cpu, machine.architecture, f"{machine.cores} cores"])
    return {
        "machine": {
            "processor": ", ".join(processor),
            "GPU": ", ".join(devices) or "none that torch can reach",
            "load": machine.load,
        },
        "versions": {"forerun": machine.forerun, "python": machine.python, **machine.packages},
        "extras": {name: _extra(name) for name in EXTRAS},
        "passes": _passes(has_gpu=bool(devices)),
        "default model": {NAME: _default_model()},
        "caches": {name: _size(cache) for name, cache in _caches().items()} | _trouble(),
    }


def render(told: dict[str, Any]) -> str:
    """The report as text: under each heading two columns."""
    lines = []
    for heading, rows in told.items():
        lines.append(heading)
        width = max((len(name) for name in rows), default=0)
        lines += [f"  {name:<{width}}  {value}" for name, value in rows.items()]
        lines += [] if rows else ["  none"]
    return "\n".join(lines)


def _has(module: str) -> bool:
    """Whether a module is installed, without importing it."""
    return find_spec(module) is not None


def _extra(name: str) -> str:
    """Whether an extra is installed, or how to install it."""
    missing = [module for module in EXTRAS[name] if not _has(module)]
    install = f'missing {", ".join(missing)}: pip install "forerun[{name}]"'
    return install if missing else "installed"


def _devices() -> list[str]:
    """The product names of the GPUs."""
    if not _has("torch"):
        return []
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _passes(*, has_gpu: bool) -> dict[str, str]:
    """For each implementation of the model, whether it runs here or what is missing."""
    needed = {
        "transformers": (("torch", "transformers"), "hf", True),
        "lean CPU pass": (("torch", "transformers", "numba"), "hf,cpu", True),
        "lean GPU pass": (("torch", "transformers", "triton"), "hf,gpu", has_gpu),
    }
    passes = {}
    for name, (modules, extras, has_device) in needed.items():
        missing = [module for module in modules if not _has(module)]
        if missing:
            passes[name] = f'no, {", ".join(missing)} missing: pip install "forerun[{extras}]"'
        else:
            passes[name] = "yes" if has_device else "no, there is no CUDA device"
    return passes


def _default_model() -> str:
    """Whether the default model is installed, with its size."""
    source = packaged_weights()
    if source is not None:
        return f"installed, {source.stat().st_size / 1e6:.0f} MB"
    return "not installed; it would come from the Hugging Face hub"


class Cache(NamedTuple):
    """A cache: a folder, and a pattern for its files, which can all be made or downloaded again."""

    folder: Path
    pattern: str = "*"
    besides: Path | None = None  # a folder within it that is listed separately


def _caches() -> dict[str, Cache]:
    """All caches, each under a description of its contents."""
    triton = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    packed = cache_folder() / "packed"
    caches = {
        "converted models": Cache(cache_folder(), besides=packed),
        "packed models": Cache(packed),
        "compiled CPU pass": Cache(Path(__file__).parents[1] / "lean" / "__pycache__", "*.nb[ic]"),
        "compiled GPU kernels": Cache(Path(triton)),
    }
    if _has("huggingface_hub"):
        from huggingface_hub.constants import HF_HUB_CACHE

        caches["Hugging Face hub"] = Cache(Path(HF_HUB_CACHE))
    return caches


def _trouble() -> dict[str, str]:
    """Why models are not cached on disk, if that is so."""
    reason = why_not_cached()
    return {"no model is kept": f"{reason}; set FORERUN_CACHE"} if reason else {}


def _size(cache: Cache) -> str:
    """The size of a cache, its number of files, and its folder."""
    files = [
        file
        for file in cache.folder.rglob(cache.pattern)
        if file.is_file() and not file.is_symlink() and cache.besides not in file.parents
    ]
    if not files:
        return f"nothing in {cache.folder}"
    size = sum(file.stat().st_size for file in files)
    return f"{size / 1e6:.0f} MB, {len(files)} file{'s' * (len(files) > 1)} in {cache.folder}"
