"""Drafts with the multi-token prediction layer that came with the target, step after step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.fitting import check, fit
from forerun.drafters.heads.mtp import PublishedLayer, load, of
from forerun.drafters.heads.readings import settle
from forerun.drafters.heads.runner import Runner
from forerun.drafters.step_by_step import StepByStep


class MTP(StepByStep):
    """Draft with MTP layers, as DeepSeek-V3, GLM-4.5, Qwen3-Next and MiMo lay them out.

    One layer makes all guesses; of several each makes one, and a draft is no longer than they are.

    source: a folder or a name on the Hugging Face hub; None is the target's own files.

    It has nothing to say in a request's first round, in which the target reads the prompt.
    """

    def __init__(self, source: str | Path | None = None) -> None:
        super().__init__()
        self.name = "mtp" if source is None else f"mtp:{source}"
        self.source = None if source is None else load(source)
        self.design: Design | None = None  # known once it has seen its target, as what follows
        self.layers: tuple[int, ...] = ()  # of the target, whose states it reads: the last one
        self.tokens: HostArray = np.arange(0)
        self.reading = ""  # how the layer was read, where its files leave that open

    def fit(self, target: Any) -> Runner:
        published = self.source or of(target)
        check(published.target, target)
        if not isinstance(published, PublishedLayer):
            from forerun.drafters.heads.mtp_fitting import fit_stages

            runner, self.reading = fit_stages(published, target)
            self.layers, self.tokens = (target.num_layers,), np.arange(len(runner.head))
            return runner
        trained, reading = settle(published, target)
        if self.design not in (None, trained.design):
            wrong = f"This drafter already drafts for a target for which {self.name} is another."
            cure = "Make a second one: forerun.drafters.MTP(...)."
            raise UnsupportedError(explain(wrong, target.name, cure))
        self.design, self.tokens, self.reading = trained.design, trained.tokens, reading
        self.layers = trained.design.layers
        return fit(trained, target)
