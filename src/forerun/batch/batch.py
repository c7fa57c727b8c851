"""`batch`: answers a file of requests into a folder, in the order of the file; can be resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.base.version import __version__
from forerun.batch.answerer import AnswerCounts, Answered, WorkerSettings
from forerun.batch.batch_input import Input
from forerun.batch.job_folder import JobFolder
from forerun.batch.lines import BadLine, BatchRequest, Begun, failed, why_failed
from forerun.batch.worker_pool import WorkerPool

OnFailure = Callable[[int, str], None]


class Source(Protocol):
    """Answers requests in processes on this machine, or on Ray.

    Answers may come in any order. on_ready: called with the fingerprint of each worker.
    """

    def __call__(
        self,
        settings: WorkerSettings,
        on_ready: Callable[[str], None],
        requests: Iterator[BatchRequest],
    ) -> Iterable[Answered]: ...


@dataclass(frozen=True)
class JobSummary:
    """The counts of one run of a job."""

    output: Path
    num_lines: int
    num_new: int  # answered by this run
    num_failed: int  # of all lines
    counts: AnswerCounts  # of this run


class Stopped(KeyboardInterrupt):
    """Raised after Ctrl-C; says what the job's folder keeps."""

    def __init__(self, num_done: int, num_begun: int, num_lines: int) -> None:
        super().__init__()
        self.num_done, self.num_begun, self.num_lines = num_done, num_begun, num_lines


def batch(
    source: Input,
    out: str | Path,
    settings: WorkerSettings,
    *,
    workers: int = 1,
    answers: Source | None = None,
    retry_failed: bool = False,
    on_failure: OnFailure = lambda number, reason: None,
) -> JobSummary:
    """Answer all requests of a file. If it is started again, it continues where it stopped.

    Texts are the same with any number of workers, with any drafter and after any number of
    interruptions, because each line has its own seed and the rule is `match`.
    workers: the number of processes, which share the cores of this machine.
    answers: another way of answering requests; see `Source`.
    on_failure: called with the number of each line that fails in this run, and the reason.
    """
    if workers < 1:
        raise InputError(explain("There are too few workers.", workers, "Use 1 or more."))
    identity = _identity(source, settings)
    num_lines = len(source)
    with JobFolder(Path(out), identity, retries_failures=retry_failed) as folder:
        settings = replace(settings, created=folder.job["created"])
        answers = answers or partial(_here, num_workers=workers, on_stop=folder.keep)
        num_before, counts = folder.num_done, AnswerCounts()
        with _progress(min(num_before, num_lines), num_lines) as bar:

            def ready(fingerprint: str) -> None:
                folder.settle("fingerprint", fingerprint)
                bar.unpause()  # loading the model says nothing of the time left

            try:
                for answer, number in _answers(source, folder, partial(answers, settings, ready)):
                    folder.add(answer.index, answer.line)
                    counts += answer.counts
                    if reason := why_failed(answer.line):
                        on_failure(number, reason)
                    bar.update()
            except KeyboardInterrupt as stop:
                num_begun = sum(index not in folder.done for index in folder.begun)
                raise Stopped(folder.num_done, num_begun, num_lines) from stop
        output = folder.write_output(num_lines, as_parquet=source.is_parquet)
        num_new = folder.num_done - num_before
        return JobSummary(output, num_lines, num_new, folder.num_failed(num_lines), counts)


def _answers(
    source: Input,
    folder: JobFolder,
    answers: Callable[[Iterator[BatchRequest]], Iterable[Answered]],
) -> Iterator[tuple[Answered, int]]:
    """Answer the lines that are not done. Yields each with its line number.

    If no request is left, no model is loaded.
    """
    left = (_after(line, folder.begun) for line in source if line.index not in folder.done)
    requests = _Requests(left)
    if (first := next(requests, None)) is not None:
        requests.put_back(first)
        for answer in answers(requests):
            yield answer, requests.numbers.pop(answer.index)
            yield from requests.take_failures()
    yield from requests.take_failures()


def _after(line: BatchRequest | BadLine, begun: Mapping[int, Begun]) -> BatchRequest | BadLine:
    """The line, with the tokens that an earlier run generated for it."""
    if isinstance(line, BadLine) or line.index not in begun:
        return line
    return replace(line, begun=begun[line.index])


class _Requests(Iterator[BatchRequest]):
    """The requests among the lines; invalid lines are collected as failures."""

    def __init__(self, lines: Iterable[BatchRequest | BadLine]) -> None:
        self._lines = iter(lines)
        self._failures: list[tuple[Answered, int]] = []
        self.numbers: dict[int, int] = {}  # of requests on their way, by index

    def put_back(self, request: BatchRequest) -> None:
        self._lines = _chain(request, self._lines)

    def take_failures(self) -> list[tuple[Answered, int]]:
        """The invalid lines since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def __next__(self) -> BatchRequest:
        for line in self._lines:
            if isinstance(line, BatchRequest):
                self.numbers[line.index] = line.number
                return line
            told = failed(line, line.code, line.message)
            self._failures.append((Answered(line.index, told), line.number))
        raise StopIteration


def _chain(
    first: BatchRequest, rest: Iterator[BatchRequest | BadLine]
) -> Iterator[BatchRequest | BadLine]:
    yield first
    yield from rest


def _here(
    settings: WorkerSettings,
    on_ready: Callable[[str], None],
    requests: Iterator[BatchRequest],
    *,
    num_workers: int,
    on_stop: Callable[[dict[int, Begun]], None],
) -> Iterable[Answered]:
    return WorkerPool(requests, settings, num_workers, on_ready, on_stop)


def _identity(source: Input, settings: WorkerSettings) -> dict[str, Any]:
    """Everything that determines the texts of a job. Drafter, draft length, batch size and number
    of workers do not."""
    return {
        "input": source.digest(),
        "model": settings.model or "default",
        "model id": settings.name,
        "dtype": settings.dtype,
        "pass": "lean where it fits" if settings.lean else "transformers",
        "quantization": settings.quantize,
        "keys and values": settings.kv_dtype,
        "seed": source.seed,
        "defaults of prompts": dict(source.defaults),
        "raw prompts": settings.is_raw,
        "version of forerun": __version__,
    }


def _progress(num_done: int, total: int) -> Any:
    """A progress bar with the time left; without a terminal, a line every half minute."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        cure = 'Run: pip install "forerun[hf]"'
        raise MissingExtraError(explain("A batch needs tqdm.", "no such module", cure)) from error
    is_seen = sys.stderr.isatty()
    interval = 0.2 if is_seen else 30.0
    return tqdm(
        total=total,
        initial=num_done,
        unit="line",
        mininterval=interval,
        maxinterval=interval,
        file=sys.stderr if is_seen else _Lines(),
    )


class _Lines:
    """A substitute for standard error that turns each update of a progress bar into a line of its
    own."""

    def write(self, text: str) -> None:
        if state := text.strip():
            print(state, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()
