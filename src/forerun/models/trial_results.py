"""Keeps the results of trial passes on a transformers model as long as the model lives.

`generate(model)` wraps the model again at every call, and the trial that chooses a strategy takes
several passes.  A cached wrapper would keep its model alive; findings hold only a weak reference,
so a model is freed when its owner drops it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

LOCK = RLock()
"""Held during trial passes, so that a second thread waits for the findings of the first."""


@dataclass(eq=False)
class Findings:
    """Results so far; None where there has been no trial yet."""

    model: ReferenceType[Any] | None  # the model to run trials on
    candidate: Any = None  # the chosen strategy
    scores_trees: bool | None = None
    shows_states: bool | None = None
    device_pass: Any = None  # our GPU pass made from the weights, with its storage


_known: WeakKeyDictionary[Any, tuple[Hashable, Findings]] = WeakKeyDictionary()


def findings_of(model: Any) -> Findings:
    """The findings of earlier wrappers of this model if its fingerprint is unchanged, else new
    ones."""
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
    """A value that changes with everything that determines how a model runs, except the values of
    its weights."""
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
