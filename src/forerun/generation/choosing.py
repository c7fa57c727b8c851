"""Finds the drafter that a caller asked for: by "auto", by a name, or as an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from forerun.base.errors import InputError, explain, meant
from forerun.drafters.base import Drafter
from forerun.drafters.block import Block
from forerun.drafters.folders import kind_of
from forerun.drafters.heads import Heads
from forerun.drafters.heads.files import trained_for
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.fitting import SHIPPED
from forerun.drafters.mixed import Mixed
from forerun.drafters.model import Model
from forerun.drafters.registry import make_one, names
from forerun.drafters.suffix import Suffix
from forerun.drafters.verbs import check_verbs
from forerun.models.adapter import as_model
from forerun.models.base import CpuPass, GpuPass, Inspectable, LanguageModel, identity
from forerun.rules.types import DraftLength
from forerun.trees.tree import Tree

Drafters = Drafter | str | Sequence[Drafter | str] | Mapping[str, Drafter | str | None]
"""One drafter or several, as objects or by names of the command line."""

_kept: WeakKeyDictionary[Any, dict[str, Drafter | None]] = WeakKeyDictionary()
_lock = RLock()


def drafter_for(target: LanguageModel, drafter: Drafter | str | None) -> Drafter | None:
    """The drafter that was asked for; None for plain decoding.

    A drafter asked for by name is made once and kept as long as the target lives, so later calls
    reuse its weights and what it has learned. A model becomes a drafter by itself.
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


def make_drafter(spec: str, load: Callable[[str], Any] = as_model) -> Drafter | None:
    """Make a drafter from its name. "none" gives None, "a+b" a `Mixed` of both, and "model:a" the
    model of that name, which "a" alone gives too.

    load: loads the model of that name, for names that are not drafters.
    """
    if spec == "none":
        return None
    if spec == "":
        cure = f"Use {', '.join(names())}, a model, or none."
        raise InputError(explain("No drafter is named.", "an empty text", cure))
    parts = spec.split("+")
    if len(parts) > 1 and (idle := {"", "none"}.intersection(parts)):
        cure = f"Name a drafter on both sides of each plus: {', '.join(names())}, or a model."
        wrong = f"There is nothing to mix where {min(idle) or 'no name'} stands."
        raise InputError(explain(wrong, repr(spec), cure))
    made = [_made(part, load) for part in parts]
    return made[0] if len(made) == 1 else Mixed(*made)


def _made(part: str, load: Callable[[str], Any]) -> Drafter:
    """One drafter from its name; a slip in the kind before a colon is told without loading
    anything."""
    kind, colon, name = part.partition(":")
    if colon and kind == "model":
        return Model(load(name))
    if colon and kind not in names() and (question := meant(kind, [*names(), "model"])):
        cure = f"Before the colon use {', '.join(names())} or model.{question}"
        raise InputError(explain("There is no drafter of that kind.", repr(part), cure))
    return make_one(part, load)


def drafters_for(target: LanguageModel, drafters: Drafters) -> dict[str, Drafter]:
    """Drafters by the names that the caller gave, or else by their own names; "none" is left
    out."""
    if isinstance(drafters, Mapping):
        asked = dict(drafters)
    else:
        is_list = isinstance(drafters, Sequence) and not isinstance(drafters, str)
        listed: Any = drafters if is_list else [drafters]
        asked = {one if isinstance(one, str) else getattr(one, "name", ""): one for one in listed}
    made = {name: drafter_for(target, drafter) for name, drafter in asked.items()}
    return {name: drafter for name, drafter in made.items() if drafter is not None}


def _is_model(given: Any) -> bool:
    """Whether an object is a language model (ours or transformers') and not a drafter."""
    if isinstance(given, type) or hasattr(given, "propose"):
        return False
    return isinstance(given, LanguageModel) or (hasattr(given, "config") and callable(given))


def _make(target: LanguageModel, name: str) -> Drafter | None:
    return usual_drafter(target) if name == "auto" else make_drafter(name)


def idle_options(draft_length: DraftLength, tree: int | Tree | None) -> str | None:
    """A note about drafting options that have no effect without a drafter; None if there are
    none."""
    idle = ["draft_length"] * (draft_length not in ("auto", 0)) + ["tree"] * (tree is not None)
    return f"no drafter, so {' and '.join(idle)} did nothing" if idle else None


BESIDE = "drafter"
"""The subfolder of a model's folder in which a drafter trained for it is looked for."""


def usual_drafter(target: LanguageModel) -> Drafter:
    """The default drafter: one trained for this target, mixed with suffix lookup; or suffix lookup
    alone.

    On the lean GPU pass a trained drafter is used alone. It drafts within captured rounds, and
    suffix lookup, which runs on the host, would prevent these.
    """
    folder = trained_folder(target)
    if folder is None:
        return Suffix()
    trained: Drafter
    if kind_of(folder, {}) == "block":
        trained = Block(folder)
    else:
        trained = Heads(None if folder == SHIPPED else folder)
    is_captured = isinstance(target, GpuPass)
    return trained if is_captured else Mixed(trained, Suffix())


def trained_folder(target: LanguageModel) -> Path | None:
    """The folder of a drafter that fits this target, beside its weights or shipped with Forerun; or
    None."""
    if not isinstance(target, Inspectable):
        return None
    for folder in (Path(target.name) / BESIDE, SHIPPED):
        trained = trained_for(folder)
        if trained is not None and _fits(trained, target):
            return folder
    return None


def _fits(trained: Fingerprint, target: Any) -> bool:
    """Whether a drafter was trained for this target, and the target's hidden states can be read."""
    if (trained.hidden_size, trained.num_layers) != (target.hidden_size, target.num_layers):
        return False
    if isinstance(target, CpuPass):  # without loading its transformers model
        return trained.fits(Fingerprint.of_lean(target))
    model = getattr(target, "model", None)
    if model is None or not trained.fits(Fingerprint.of(model, target.name)):
        return False
    return bool(getattr(target, "strategy", "crop") == "crop")  # asked last: it may run passes
