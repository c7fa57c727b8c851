"""Runs the jobs of a sweep on one target; each prompt is read once, and copied for later cells.

On a CPU, reading a long prompt takes as long as writing its answer.  Every cell would read it again
and compute the same keys, values and hidden states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.base import Drafter
from forerun.measure.grid import Job
from forerun.measure.peers import run_transformers
from forerun.measure.records import Cell, Run
from forerun.measure.running import run_cell
from forerun.models.base import LanguageModel, Parents, check_score

MOST_BYTES = 2 * 2**30
"""The most bytes of stored states; the least recently used prompts are dropped first."""

Key = tuple[tuple[int, ...], tuple[int, ...]]


class ReadOnce:
    """Remembers the states of prompts that were read; `target` is a copy of the model that uses
    them.

    `target` shares the model's weights. It is a copy and not a wrapper, because drafters check the
    type of the model they draft for.

    When an empty row is fed a known prompt, it gets the stored state, which covers all of the
    prompt but its last token. The model reads that token as usual, together with the draft, so a
    first round has its own logits and costs as much as later rounds.
    """

    def __init__(self, model: LanguageModel, most_bytes: int = MOST_BYTES) -> None:
        if not hasattr(model.start(1, 1), "copy_out"):
            wrong = "This target cannot keep what it has read, so prompts are read in every run."
            cure = (
                "Leave out --read-prompts-once (read_prompts_once), or load a Llama-family model "
                'in float32 on the CPU, where the lean pass can: pip install "forerun[cpu]".'
            )
            raise UnsupportedError(explain(wrong, type(model).__name__, cure))
        self.num_recalled = 0  # prompts taken from memory
        self.num_bytes = 0
        self._most_bytes = most_bytes
        self._known: OrderedDict[Key, Any] = OrderedDict()  # least recently used first
        self._model = model
        self.target: Any = copy(model)
        self.target.score = self._score  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._known)

    def _score(
        self,
        state: Any,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        """Score as the model does, but copy stored prompts into rows instead of reading them
        again."""
        check_score(state.lengths, rows, tokens, num_logits, self._model.vocab_size)
        unknown: dict[int, Key] = {}
        for row, fed, count in zip(rows, tokens, num_logits, strict=True):
            read = tuple(fed[: len(fed) - count])  # the prompt, but for its last token
            if read and state.lengths[row] == 0:
                key = read, state.layers
                if key in self._known:
                    self._known.move_to_end(key)
                    state.copy_in(row, self._known[key])
                    self.num_recalled += 1
                else:
                    unknown[row] = key
        logits = self._model.score(state, rows, tokens, num_logits, parents)
        for row, key in unknown.items():
            self._remember(key, state.copy_out(row, len(key[0])))
        return logits

    def _remember(self, key: Key, begun: Any) -> None:
        """Keep what a row stores after a prompt; the least recently used ones go when memory is
        short."""
        if key in self._known:  # two rows of the batch share the prompt
            return
        self._known[key] = begun
        self.num_bytes += begun.num_bytes
        while self.num_bytes > self._most_bytes:
            _, oldest = self._known.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


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
        """Run a job; returns its record."""
        cell = job.cell
        kind = (cell.drafter, cell.tree, cell.batch, cell.peer)
        if kind not in self._warm:
            self._answer(job, WARM_UP_TOKENS)
            self._warm.add(kind)
        return self._answer(job, self.max_new_tokens)

    def drafter_of(self, cell: Cell) -> Drafter | None:
        """The drafter of a cell; None for plain decoding."""
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
