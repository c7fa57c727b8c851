"""Runs the jobs of a sweep on one target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forerun.drafters.base import Drafter
from forerun.measure.grid import Job
from forerun.measure.peers import run_transformers
from forerun.measure.read_once import ReadOnce
from forerun.measure.records import Cell, Run
from forerun.measure.running import run_cell
from forerun.models.base import LanguageModel

WARM_UP_TOKENS = 4


class JobRunner:
    """Runs jobs one after another; each kind of cell is warmed up before its first run."""

    def __init__(
        self,
        target: LanguageModel,
        drafters: Mapping[str, Drafter],
        max_new_tokens: int,
        *,
        read_prompts_once: bool,
    ) -> None:
        self.memory = ReadOnce(target) if read_prompts_once else None
        self.target: LanguageModel = target if self.memory is None else self.memory.target
        self.drafters = drafters
        self.max_new_tokens = max_new_tokens
        self._warm: set[tuple[str | None, int | None, int, str | None]] = set()

    def run(self, job: Job) -> Run:
        cell = job.cell
        kind = (cell.drafter, cell.tree, cell.batch, cell.peer)
        if kind not in self._warm:
            self._answer(job, WARM_UP_TOKENS)
            self._warm.add(kind)
        return self._answer(job, self.max_new_tokens)

    def drafter_of(self, cell: Cell) -> Drafter | None:
        return None if cell.drafter is None else self.drafters[cell.drafter]

    def _answer(self, job: Job, max_new_tokens: int) -> Run:
        answer = run_cell if job.cell.peer is None else run_transformers
        recalled = self._num_recalled
        run = answer(
            self.target,
            self.drafter_of(job.cell),
            job.cell,
            job.questions,
            repeat=job.repeat,
            max_new_tokens=max_new_tokens,
        )
        return replace(run, read_prompts=self._num_recalled == recalled)

    @property
    def _num_recalled(self) -> int:
        return 0 if self.memory is None else self.memory.num_recalled
