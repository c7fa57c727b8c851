"""`forerun batch`: answers a file of requests into a folder, in order; can be resumed."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.batch.batch_input import Input
from forerun.batch.lines import BadLine
from forerun.cli.flags.shared import SAMPLING, flag_of
from forerun.loading.bundled import NAME
from forerun.sampling.options import Sampling

MOST_TOLD = 20  # failures that are printed one by one
OTHER_NAME = re.compile(r"The model '(.+?)' does not exist here")


def run(args: argparse.Namespace) -> int:
    """Answer the file into the folder. Returns status 1 if a line failed, 130 if Ctrl-C stopped
    it."""
    if args.input is None:
        cure = "Name a file of JSON lines: forerun batch questions.jsonl --out answers."
        raise InputError(explain("There is nothing to answer.", "no file", cure))
    source = Input(Path(args.input), args.seed, _defaults(args), args.limit)
    _check_counts(args)
    if args.dry_run:
        return _dry_run(source, _settings(args))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli/loading.py
    from forerun.batch.batch import JobSummary, Stopped, batch

    teller = _Teller()
    answers = None
    if args.ray:
        from forerun.scale.ray_cluster import start_ray
        from forerun.scale.ray_data import answers_on_ray

        start_ray()  # if it cannot, before anything is written
        answers = partial(answers_on_ray, num_workers=args.workers)
    began = time.monotonic()
    try:
        summary: JobSummary = batch(
            source,
            args.out,
            _settings(args),
            workers=args.workers,
            answers=answers,
            retry_failed=args.retry_failed,
            on_failure=teller,
        )
    except Stopped as stop:
        begun = f" and {stop.num_begun:,} begun" if stop.num_begun else ""
        kept = f"{stop.num_done:,} of {_counted(stop.num_lines, 'line')} answered{begun}"
        print(f"\nstopped: {kept}; the same command goes on from there", file=sys.stderr)
        return 130
    teller.end()
    print(_in_words(summary, time.monotonic() - began), file=sys.stderr)
    print(summary.output)
    return 1 if summary.num_failed else 0


class _Teller:
    """Prints the failures of the first few lines, and in the end how many more there were and what
    lets the model have the name that lines ask for."""

    def __init__(self) -> None:
        self._count = 0
        self._name = ""  # of a model that lines ask for and that is not here

    def __call__(self, number: int, reason: str) -> None:
        """Print the failure of a line, unless `MOST_TOLD` have been printed already."""
        from tqdm import tqdm

        self._count += 1
        if found := OTHER_NAME.search(reason):
            self._name = found[1]
        if self._count <= MOST_TOLD:
            told = reason if reason.startswith("Line ") else f"Line {number}: {reason}"
            tqdm.write(f"failed: {told}", file=sys.stderr)  # above the bar, not within its line

    def end(self) -> None:
        """Print the number of failures that were not printed, and the option for another name."""
        if self._count > MOST_TOLD:
            print(f"failed: {self._count - MOST_TOLD} more; see the output", file=sys.stderr)
        if self._name:
            option = f"--name {quote(self._name)}"
            print(f"note: with {option}, and a new --out, lines may call it so", file=sys.stderr)


def _settings(args: argparse.Namespace) -> Any:
    """The settings for each worker process."""
    from forerun.batch.answerer import WorkerSettings

    name = args.name
    if name is None and args.model is not None and Path(args.model).is_dir():
        name = Path(args.model).resolve().name
    return WorkerSettings(
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        lean=not args.no_lean,
        quantize=args.quantize,
        gpu_memory=args.gpu_memory,
        kv_dtype=args.kv_dtype,
        drafter=args.drafter or "auto",
        draft_length=args.draft_length,
        max_batch=args.max_batch,
        name=name,
        is_raw=args.raw,
    )


def _defaults(args: argparse.Namespace) -> dict[str, Any]:
    """Request fields, taken from the flags, for lines that are bare prompts; only those that change
    anything."""
    values = {name: getattr(args, name) for name in SAMPLING}
    Sampling(**values, seed=args.seed)
    kept = {
        name: v
        for name, v in values.items()
        if name == "temperature" or v != getattr(Sampling, name)
    }
    stop = {"stop": args.stop} if args.stop else {}
    return {"max_tokens": args.max_tokens, **kept, **stop}


def _check_counts(args: argparse.Namespace) -> None:
    """Refuse counts that are too small, before a model is loaded."""
    for name in ("workers", "max_batch", "max_tokens", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(explain(f"{flag_of(name)} is too small.", value, "Use 1 or more."))
    if isinstance(args.draft_length, int) and args.draft_length < 0:
        wrong = "--draft-length is too small."
        raise InputError(explain(wrong, args.draft_length, "Use 0 or more."))


def _dry_run(source: Input, settings: Any) -> int:
    """Print the invalid lines of the file, without a model. Returns status 1 if there are any."""
    from forerun.batch.batch_routes import Judge

    source.digest()  # reports an unreadable file
    judge = Judge(_model_id(settings), settings.drafter, is_raw=settings.is_raw)
    teller, num_bad, num_lines = _Teller(), 0, len(source)
    for line in source:
        reason = line.message if isinstance(line, BadLine) else judge.why_not(line)
        if reason is not None:
            num_bad += 1
            teller(line.number, reason)
    teller.end()
    print(f"{_counted(num_lines, 'line')}, {num_bad:,} bad")
    return 1 if num_bad else 0


def _model_id(settings: Any) -> str:
    """The name of the model that requests may contain."""
    if settings.name is not None:
        return str(settings.name)
    return (settings.model or NAME) + (f"-{settings.quantize}" if settings.quantize else "")


def _counted(count: int, word: str) -> str:
    """A number with its noun: `1 line`, `2 lines`, `3,000 lines`."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def _in_words(summary: Any, seconds: float) -> str:
    """A sentence on how many lines were answered and failed, and how fast."""
    counts = summary.counts
    num_answered = summary.num_lines - summary.num_failed
    lines = (
        f"{_counted(summary.num_lines, 'line')}: {num_answered:,} answered, "
        f"{summary.num_failed:,} failed; "
        f"{summary.num_new:,} of them done in this run"
    )
    if not counts.new_tokens:
        return lines
    return (
        f"{lines}, {_counted(counts.new_tokens, 'token')} in {seconds:.0f} s with loading the "
        f"model ({counts.new_tokens / seconds:.1f} tokens/s, "
        f"{(counts.new_tokens) / max(counts.rounds, 1):.2f} per round)"
    )
