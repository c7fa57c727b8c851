"""From what a caller asked for to a drafter: "auto", a name of the command line, or an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from forerun.drafters.base import Drafter
from forerun.drafters.model import Model
from forerun.drafters.registry import make_drafter
from forerun.drafters.usual import usual_drafter
from forerun.drafters.verbs import check_verbs
from forerun.models.base import LanguageModel, identity

Drafters = Drafter | str | Sequence[Drafter | str] | Mapping[str, Drafter | str | None]
"""One drafter or several, as objects or by names of the command line."""

_kept: WeakKeyDictionary[Any, dict[str, Drafter | None]] = WeakKeyDictionary()
_lock = RLock()


def drafter_for(target: LanguageModel, drafter: Drafter | str | None) -> Drafter | None:
    """The drafter that was asked for; None is plain decoding.

    One that was named is made once and kept as long as the target lives: what it has learned, and
    the weights it has loaded, serve the next call.  A model drafts by itself.
    """
    if drafter is None:
        return None
    if not isinstance(drafter, str):
        if _is_model(drafter):
            return Model(drafter)
        check_verbs(drafter)
        return drafter
    with _lock:
        try:
            kept = _kept.setdefault(identity(target), {})
        except TypeError:  # not hashable, or cannot be referred to weakly
            kept = {}
        if drafter not in kept:
            kept[drafter] = _make(target, drafter)
        return kept[drafter]


def drafters_for(target: LanguageModel, drafters: Drafters) -> dict[str, Drafter]:
    """Drafters by the names they were given, or else their own; `none` is left out."""
    if isinstance(drafters, Mapping):
        asked = dict(drafters)
    else:
        is_list = isinstance(drafters, Sequence) and not isinstance(drafters, str)
        listed: Any = drafters if is_list else [drafters]
        asked = {one if isinstance(one, str) else getattr(one, "name", ""): one for one in listed}
    made = {name: drafter_for(target, drafter) for name, drafter in asked.items()}
    return {name: drafter for name, drafter in made.items() if drafter is not None}


def _is_model(given: Any) -> bool:
    """Whether it is a language model, ours or of transformers, and not a drafter."""
    if isinstance(given, type) or hasattr(given, "propose"):
        return False
    return isinstance(given, LanguageModel) or (hasattr(given, "config") and callable(given))


def _make(target: LanguageModel, name: str) -> Drafter | None:
    return usual_drafter(target) if name == "auto" else make_drafter(name)
