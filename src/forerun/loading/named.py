"""Loads models given by name, as in `generate("name", ...)`."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from typing import Any

from forerun.loading.load import load, wrap
from forerun.models.base import LanguageModel

_last: dict[str, LanguageModel] = {}
_lock = RLock()


def model_of(target: Any) -> LanguageModel:
    """The given model as a `LanguageModel`; a name or folder is loaded. Only the last model loaded
    in this way is kept for the next call."""
    if not isinstance(target, str | Path):
        return wrap(target)
    name = str(target)
    with _lock:
        if name not in _last:
            _last.clear()  # before the next one is loaded: there may be no room for both
            _last[name] = load(name)
        return _last[name]
