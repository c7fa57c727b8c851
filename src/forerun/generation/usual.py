"""The drafter that a target gets unless another one is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.drafters.base import Drafter
from forerun.drafters.heads import Heads
from forerun.drafters.heads.files import trained_for
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.fitting import SHIPPED
from forerun.drafters.mixed import Mixed
from forerun.drafters.suffix import Suffix
from forerun.models.base import CpuPass, GpuPass, Inspectable, LanguageModel

BESIDE = "drafter"
"""The subfolder of a model's folder in which a drafter trained for it is looked for."""


def usual_drafter(target: LanguageModel) -> Drafter:
    """A drafter trained for this target, mixed with suffix lookup; or suffix lookup alone.

    On the lean GPU pass a trained one works alone: it drafts within the captured rounds, and suffix
    lookup, on the host, would take it out of them.
    """
    folder = trained_folder(target)
    if folder is None:
        return Suffix()
    heads = Heads(None if folder == SHIPPED else folder)
    is_captured = isinstance(target, GpuPass)
    return heads if is_captured else Mixed(heads, Suffix())


def trained_folder(target: LanguageModel) -> Path | None:
    """The folder of a drafter that fits this target: beside its weights, or the shipped one."""
    if not isinstance(target, Inspectable):
        return None
    for folder in (Path(target.name) / BESIDE, SHIPPED):
        trained = trained_for(folder)
        if trained is not None and _fits(trained, target):
            return folder
    return None


def _fits(trained: Fingerprint, target: Any) -> bool:
    """Whether a drafter was trained for this target, whose hidden states can be read."""
    if (trained.hidden_size, trained.num_layers) != (target.hidden_size, target.num_layers):
        return False
    if isinstance(target, CpuPass):  # without loading its transformers model
        return trained.fits(Fingerprint.of_lean(target))
    model = getattr(target, "model", None)
    if model is None or not trained.fits(Fingerprint.of(model, target.name)):
        return False
    return bool(getattr(target, "strategy", "crop") == "crop")  # asked last: it may run passes
