"""`sweep`: runs every drafter, draft length, batch and temperature on the same prompts.

A sweep can be killed at any time and started again: each run is on disk before the next one
begins, and finished runs are not repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.base.errors import shown_by
from forerun.drafters.base import Drafter
from forerun.generation.choosing import Drafters, drafters_for
from forerun.generation.prompts import encode
from forerun.loading.named import model_of
from forerun.measure.figures import figures
from forerun.measure.grid import Job, cells_of, jobs_of, repeats_of
from forerun.measure.job_runner import JobRunner
from forerun.measure.log import Log
from forerun.measure.machine import Machine, this_machine
from forerun.measure.peers import check_peer
from forerun.measure.pricing import forecast
from forerun.measure.probe import look_at, step_sizes, try_out
from forerun.measure.progress import Progress
from forerun.measure.records import Cell, Header, Prediction, Records, Run
from forerun.measure.running import Question, sample_cell
from forerun.models.base import LanguageModel
from forerun.noise.race import fold
from forerun.prompts import Prompt
from forerun.rules.types import DraftLength

Spread = Callable[[Sequence[Job], Machine], Iterable[Run]]
"""A function that runs jobs on other machines. It receives the jobs, and the machine that the sweep
was started on."""


@shown_by('fr.sweep(target, ["ngram", "suffix"], prompts, "folder")')
def sweep(
    target: Any,
    drafters: Drafters,
    prompts: Sequence[Prompt | str],
    out: str | Path | Log,
    *,
    draft_lengths: Sequence[DraftLength] = tuple(range(9)),
    trees: Sequence[int] = (),
    batches: Sequence[int] = (1,),
    temperatures: Sequence[float] = (0.0,),
    rule: str = "match",
    repeats: int | Sequence[int] = 1,
    max_new_tokens: int = 64,
    seed: int = 0,
    against: Sequence[str] = (),
    predict: bool = True,
    read_prompts_once: bool = False,
    command: str = "",
    spread: Spread | None = None,
) -> Records:
    """Run all cells and return all records of the file.

    drafters: as for `plan`; records have their names.  Plain decoding is always included.
    prompts: texts, or prompts with a name and a group as `forerun.prompts` reads them.
    trees: node counts of trees as deep as the longest draft; chains are run as well.
    repeats: number of repeats, or one number per batch size.
    against: peers that run the cells they have a counterpart for: "transformers".
    predict: probe first, and record a prediction for each cell.
    read_prompts_once: later runs of a prompt start from a copy of its state; lean CPU pass only.
        Text, counts and speed do not change; the speed with the prompt is then unknown.
    spread: runs the jobs elsewhere, on machines like this one, and gives back their runs.
    """
    prompts = _named(prompts)
    log = out if isinstance(out, Log) else Log(out)
    model = model_of(target)
    named = drafters_for(model, drafters)
    if against:
        check_peer(model)
    runner = _Runner(model, named, log, max_new_tokens, read_prompts_once=read_prompts_once)
    questions = [_question(model, prompt, index, seed) for index, prompt in enumerate(prompts)]
    cells = cells_of(
        model.name,
        named,
        draft_lengths=draft_lengths,
        trees=trees,
        batches=batches,
        temperatures=temperatures,
        rule=rule,
        peers=against,
    )
    jobs = list(jobs_of(cells, questions, repeats_of(batches, repeats)))
    machine = this_machine(model, command=command)
    log.begin(
        Header(
            target=model.name,
            max_new_tokens=max_new_tokens,
            seed=seed,
            prompts=[prompt.id for prompt in prompts],
            prompts_digest=_digest(prompts),
            machine=machine,
        )
    )
    done = {(run.cell, run.repeat, _ids(run)) for run in log.records.runs}
    left = [job for job in jobs if job.key not in done]
    if predict:
        runner.predict(cells, questions, seed)
    with Progress("run", len(jobs), done=len(jobs) - len(left)) as progress:
        if spread is None:
            for job in left:
                progress.begin(_title(job.cell))
                log.add(runner.run(job))
        else:
            for run in spread(left, machine):
                progress.begin(f"{_title(run.cell)} has come")
                log.add(run)
        progress.note("recording samples")
        runner.sample(cells, questions)
    return log.records


class _Runner(JobRunner):
    """Runs jobs, and records what the probe predicts and a sample of each drafter."""

    def __init__(
        self,
        target: LanguageModel,
        drafters: Mapping[str, Drafter],
        log: Log,
        max_new_tokens: int,
        *,
        read_prompts_once: bool,
    ) -> None:
        super().__init__(target, drafters, max_new_tokens, read_prompts_once=read_prompts_once)
        self.log = log

    def predict(self, cells: Sequence[Cell], questions: Sequence[Question], seed: int) -> None:
        """Probe the drafters of all cells that have no prediction yet."""
        known = {prediction.cell for prediction in self.log.records.predictions}
        missing = [cell for cell in cells if _is_predictable(cell) and cell not in known]
        if not missing:
            return
        temperatures = sorted({cell.temperature for cell in missing})
        trees = sorted({cell.tree for cell in missing if cell.tree is not None})
        names = list(dict.fromkeys(cell.drafter for cell in missing))
        sizes = step_sizes(len(names), len(questions), len(temperatures), len(trees))
        with Progress("probing", len(sizes), sizes=sizes) as progress:
            self._predict(missing, names, questions, temperatures, trees, seed, progress)

    def _predict(
        self,
        missing: Sequence[Cell],
        names: Sequence[str | None],
        questions: Sequence[Question],
        temperatures: Sequence[float],
        trees: Sequence[int],
        seed: int,
        progress: Progress,
    ) -> None:
        """Probe each drafter once, and add a forecast for each of its cells to the log."""
        subject = look_at(
            self.target,
            [question.tokens for question in questions],
            temperatures=temperatures,
            batches=sorted({cell.batch for cell in missing}),
            max_draft_length=max(int(cell.draft_length) for cell in missing),
            trees=trees,
            max_new_tokens=self.max_new_tokens,
            seed=seed,
            report=progress.begin,
        )
        for name in names:
            probe = try_out(subject, self.drafters[name or ""], report=progress.begin)
            for cell in (cell for cell in missing if cell.drafter == name):
                if cell.rule in probe.rules(cell.temperature):
                    expected = forecast(
                        probe,
                        draft_length=int(cell.draft_length),
                        tree=cell.tree,
                        batch=cell.batch,
                        temperature=cell.temperature,
                        rule=cell.rule,
                    )
                    self.log.add(Prediction(cell, expected.tokens_per_round, expected.speedup))

    def sample(self, cells: Sequence[Cell], questions: Sequence[Question]) -> None:
        """Record one generation of each drafter token by token, in its fastest cell."""
        known = {done.cell.drafter for done in self.log.records.samples}
        alone = [cell for cell in cells if cell.peer is None and cell.batch == 1]
        measured = figures([run for run in self.log.records.runs if run.cell in alone])
        speeds = {entry.cell: entry.tokens_per_second.mean for entry in measured}
        for name in self.drafters:
            cells_of_drafter = [cell for cell in alone if cell.drafter == name]
            if cells_of_drafter and name not in known:
                cell = max(cells_of_drafter, key=lambda candidate: speeds.get(candidate, 0.0))
                self.log.add(
                    sample_cell(
                        self.target,
                        self.drafter_of(cell),
                        cell,
                        questions[0],
                        max_new_tokens=self.max_new_tokens,
                    )
                )


def _is_predictable(cell: Cell) -> bool:
    """Whether a probe covers the cell: our own fixed-length drafts, and trees under `match`."""
    is_ours = cell.peer is None and cell.drafter is not None
    return is_ours and cell.draft_length != "auto" and (cell.tree is None or cell.rule == "match")


def as_chat(target: Any, prompt: Prompt) -> Any:
    """The first turn of a prompt, as a chat if the target's tokenizer has a chat template."""
    has_template = getattr(getattr(target, "tokenizer", None), "chat_template", None) is not None
    return [{"role": "user", "content": prompt.text}] if has_template else prompt.text


def _question(target: LanguageModel, prompt: Prompt, index: int, seed: int) -> Question:
    tokens = encode(target, as_chat(target, prompt))
    return Question(prompt.id, prompt.group, prompt.text, tokens, fold(seed, index))


def _named(prompts: Sequence[Prompt | str]) -> list[Prompt]:
    """Texts as prompts of one group, named by their numbers."""
    listed = [prompts] if isinstance(prompts, str) else prompts
    return [
        Prompt(str(number), "prompts", (prompt,)) if isinstance(prompt, str) else prompt
        for number, prompt in enumerate(listed)
    ]


def _digest(prompts: Sequence[Prompt]) -> str:
    text = "\0".join(prompt.text for prompt in prompts)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _ids(run: Run) -> tuple[str, ...]:
    return tuple(answer.prompt for answer in run.answers)


def _title(cell: Cell) -> str:
    """A short description of a cell."""
    name = "plain" if cell.drafter is None else f"{cell.drafter}, K = {cell.draft_length}"
    name += "" if cell.tree is None else f", tree of {cell.tree}"
    name += "" if cell.peer is None else f" ({cell.peer})"
    return f"{name}, batch {cell.batch}, temperature {cell.temperature:g}"
