"""What `make docs` adds to docs/: pages from outside that folder, and the API reference.

Pages keep their place in the repository (docs/rules.md, benchmarks/README.md), so one relative link
serves a reader of the repository and a reader of the built pages.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "LICENSE", "docs/**/*", "benchmarks/**/*", "deploy/**/*")
LEFT_OUT = ("__pycache__", ".pyc")

SECTIONS = {
    "Models": ("load", "wrap"),
    "Generation": (
        "generate",
        "stream",
        "Sampling",
        "Generation",
        "Stats",
        "TokenLogprob",
        "Fate",
        "Stream",
        "Piece",
        "AsyncEngine",
        "Answer",
    ),
    "The rule alone": ("verify", "Draft", "Sparse", "Tree", "Verdict"),
    "Proofs and checks": (
        "certify",
        "Certificate",
        "law",
        "target_law",
        "doctor",
        "Checkup",
        "audit",
        "Report",
    ),
    "Does it pay?": ("plan", "probe", "sweep", "simulate", "replay"),
}
"""The order of the reference; names that are in none of these come last."""

MODULES = {"drafters": "Drafters", "grammars": "Grammars", "rules": "Rules", "theory": "Theory"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put every page where it is in the repository, and the reference beside the others."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()})
    pages = [
        File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls)
        for path in paths
        if not any(part in str(path) for part in LEFT_OUT)
    ]
    reference = File.generated(config, "docs/reference.md", content=_reference())
    return Files([*theme, *pages, reference])


def _reference() -> str:
    """One section per group of names; mkdocstrings fills in signatures and docstrings."""
    import forerun

    names = [name for name in _public(forerun) if not inspect.ismodule(getattr(forerun, name))]
    sections = {
        title: [name for name in section if name in names] for title, section in SECTIONS.items()
    }
    errors = [name for name in names if name.endswith("Error")]
    listed = {name for section in sections.values() for name in section} | set(errors)
    sections["More"] = [name for name in names if name not in listed]
    sections["Errors"] = errors
    parts = [
        "# API reference\n",
        "Everything here is reached by `import forerun as fr`; what is not here may change.\n",
    ]
    for title, section in sections.items():
        if section:
            parts.append(f"## {title}\n")
            parts += [_directive(forerun, name) for name in section]
    for module, title in MODULES.items():
        parts.append(f"## {title}\n\n`forerun.{module}`\n")
        inner = getattr(forerun, module)
        parts += [_directive(inner, name) for name in _public(inner)]
    return "\n".join(parts)


def _directive(module: ModuleType, name: str) -> str:
    """What mkdocstrings replaces: where a name is defined, as `forerun.law` is a module too."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"::: {value.__module__}.{value.__qualname__}\n"
    return f"::: {module.__name__}.{name}\n"


def _public(module: ModuleType) -> list[str]:
    """The names of a module that are its own: `__all__`, or classes and functions of Forerun."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    return [name for name, value in vars(module).items() if _is_api(name, value)]


def _is_api(name: str, value: Any) -> bool:
    if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
        return False
    return value.__module__.startswith("forerun.")
