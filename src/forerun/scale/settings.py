"""The settings of replicas: what they load and how they are run. They are sent to the replicas'
machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.drafters.base import Drafter
from forerun.engine.pacing import SLOWDOWN
from forerun.generation.choosing import make_drafter
from forerun.loading.bundled import NAME
from forerun.loading.default import default_model
from forerun.loading.load import load
from forerun.models.base import LanguageModel
from forerun.rules.types import DraftLength


@dataclass(frozen=True)
class ModelSettings:
    """The model and the drafters that each replica loads, and their settings.

    model: a hub name or a folder that every machine has; None for the default model.
    drafters: by their command-line names, the default first; empty for the usual one.
    max_batch: the number of answers in one pass of a replica.
    slowdown: a round that also reads prompts may take this many times as long as usual.
    """

    model: str | None = None
    drafters: Sequence[str] = ()
    draft_length: DraftLength = "auto"
    max_batch: int = 8
    device: str | None = None
    dtype: str | None = None
    lean: Any = "auto"
    quantize: Any = None
    slowdown: float = SLOWDOWN

    @property
    def drafter_names(self) -> list[str]:
        """The names of drafters that requests may use; "none" drafts nothing."""
        usual = "heads+suffix" if self.model in (None, NAME) else "suffix"
        return list(dict.fromkeys([*(self.drafters or [usual]), "none"]))

    def load(self) -> tuple[LanguageModel, dict[str, Drafter | None]]:
        """Load the model, and its drafters by name."""
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads starve each other
        drafters = {name: make_drafter(name, self._load) for name in self.drafter_names}
        if self.model is None:
            place, kind = self.device, self.dtype
            return default_model(place, kind, lean=self.lean, quantize=self.quantize), drafters
        return self._load(self.model, lean=self.lean, quantize=self.quantize), drafters

    def _load(self, model: str, **options: Any) -> LanguageModel:
        return load(model, self.device, self.dtype, **options)


@dataclass(frozen=True)
class Scale:
    """The number of replicas, and the resources of each."""

    least: int = 1
    most: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            cure = "Use --replicas 2, or --autoscale 1:8 with at least one replica."
            received = f"{self.least} to {self.most}"
            raise InputError(explain("There is no such number of replicas.", received, cure))
        if self.num_cpus < 0 or self.num_gpus < 0:
            received = f"{self.num_cpus:g} CPUs and {self.num_gpus:g} GPUs"
            cure = "Use 0 or more of both."
            raise InputError(explain("A replica cannot take less than nothing.", received, cure))
