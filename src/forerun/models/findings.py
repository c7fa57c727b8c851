"""What was found out about a transformers model by trying it, kept as long as the model lives.

`generate(model)` wraps the model anew at every call, and trying out how its rows can be kept takes
several passes.  A remembered wrapper would keep its model alive, since it holds it; findings hold
nothing of the model, so it is still freed when its owner lets go of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

LOCK = RLock()
"""Held while a model is tried out: the second of two threads waits for what the first finds."""


@dataclass(eq=False)
class Findings:
    """What is known so far; None is what nobody has asked yet."""

    model: ReferenceType[Any] | None  # the one to be tried out
    candidate: Any = None  # the way to keep rows
    scores_trees: bool | None = None
    shows_states: bool | None = None


_known: WeakKeyDictionary[Any, tuple[Hashable, Findings]] = WeakKeyDictionary()


def findings_of(model: Any) -> Findings:
    """What earlier wrappers of this model found out, as long as it is run as it was then."""
    try:
        with LOCK:
            shape = _fingerprint(model)
            known, findings = _known.get(model, (None, None))
            if findings is None or known != shape:
                findings = Findings(ref(model))
                _known[model] = (shape, findings)
            return findings
    except (TypeError, AttributeError):  # no module, not hashable, or not to be referred to weakly
        return Findings(None)


def _fingerprint(model: Any) -> Hashable:
    """All that decides how a model is run, but for the values of its weights."""
    weights = list(model.parameters())
    modules = list(model.modules())
    forward = model.forward
    return (
        getattr(forward, "__func__", forward),
        getattr(model.config, "_attn_implementation", None),
        repr(model.config.to_dict()),
        frozenset((str(weight.dtype), str(weight.device)) for weight in weights),
        (len(weights), sum(weight.numel() for weight in weights)),
        (len(modules), sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)),
    )
