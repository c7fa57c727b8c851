"""A small network that drafts from the target's own hidden states; `forerun train` makes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.folders import description_of, find, kind_of, refuse
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.eagle3 import KIND, Published
from forerun.drafters.heads.eagle3 import load as load_published
from forerun.drafters.heads.files import Trained, load
from forerun.drafters.heads.fitting import check, fit, load_shipped
from forerun.drafters.heads.readings import settle
from forerun.drafters.heads.runner import Runner
from forerun.drafters.step_by_step import StepByStep


class Heads(StepByStep):
    """Draft with a network that was trained for this target.

    source: a folder that `forerun train` wrote, or one with an EAGLE-3 head that somebody else
    trained for this target, or the name of either on the Hugging Face hub; None is the drafter that
    comes with Forerun, for its default model.

    It makes no guesses in a request's first round, in which the target reads the prompt.
    """

    def __init__(self, source: str | Path | None = None) -> None:
        super().__init__()
        self.source: Trained | Published = load_shipped() if source is None else _load(source)
        is_published = isinstance(self.source, Published)
        prefix = "eagle3" if is_published else "heads"
        self.name = prefix if source is None else f"{prefix}:{source}"
        self.tokens = self.source.tokens  # (Vd,): the target's ids
        self.reading = ""  # how a published head was read, where its files leave that open
        self._trained = None if isinstance(self.source, Published) else self.source

    @classmethod
    def load(cls, source: str | Path) -> Heads:
        """The same as `Heads(source)`."""
        return cls(source)

    @property
    def design(self) -> Design | None:
        """The sizes of the network. For a published head this may be None until its target is
        known."""
        return self._trained.design if self._trained else None

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers that it reads; empty until the design is known."""
        return self.design.layers if self.design else ()

    def fit(self, target: Any) -> Runner:
        return fit(self._for(target), target)

    def _for(self, target: Any) -> Trained:
        """The network for this target; for a published head, the interpretation of its files that
        fits best."""
        if not isinstance(self.source, Published):
            return self.source
        check(self.source.target, target)
        trained, reading = settle(self.source, target)
        if self._trained and self._trained.design != trained.design:
            wrong = f"This drafter already drafts for a target for which {self.name} is another."
            cure = "Make a second one: forerun.drafters.Heads(...)."
            raise UnsupportedError(explain(wrong, target.name, cure))
        self._trained, self.reading = trained, reading
        return trained


def _load(source: str | Path) -> Trained | Published:
    """Load our own or a published drafter, depending on what the folder holds."""
    folder = find(source)
    kind = kind_of(folder, description_of(folder))
    if kind == KIND:
        return load_published(folder)
    if kind not in ("forerun", ""):
        refuse(folder, kind, "a drafter that Forerun trained, or an EAGLE-3 head")
    return load(folder)
