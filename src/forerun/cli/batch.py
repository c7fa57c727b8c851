"""`forerun batch`: a file of requests answered into a folder; resumable, in order."""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.batch.batch_input import Input
from forerun.batch.lines import BadLine
from forerun.cli.generate import OPTIONS, draft_length
from forerun.cli.loading import DRAFTERS, MODELS, add_pass, add_place
from forerun.loading.bundled import NAME
from forerun.sampling.options import Sampling

EXAMPLES = """examples:
  forerun batch questions.jsonl --out answers
  forerun batch requests.jsonl --out answers --model Qwen/Qwen3-8B --name gpt-4o-mini
  forerun batch prompts.parquet --out answers --workers 4 --max-tokens 64 --temperature 0.8
  forerun batch questions.jsonl --out answers --ray --workers 16

A line is one of OpenAI's batch format, or {"prompt": "..."} or {"messages": [...]} with any fields
of a request beside it.  answers/output.jsonl has one line for each, in order, in OpenAI's format.
Kill it when you like: started again with the same words it goes on where it was.  Texts depend on
the seed and each line alone, not on drafters, workers or interruptions.
"""

MOST_TOLD = 20  # failures that are printed one by one


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "batch",
        help="answer a file of requests, resumable; on this machine or on Ray",
        description="Answer every line of a file of requests into a folder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", metavar="IN", help="JSON lines, or a file ending in .parquet")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write, or go on in")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N lines")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only read the input, and say which lines are bad, as far as no model is needed",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="do lines again that failed for reasons outside of them (status 500 and above)",
    )

    places = parser.add_argument_group("workers")
    places.add_argument(
        "--workers",
        metavar="N",
        type=int,
        default=1,
        help="processes, each with the model loaded, which share the cores (default: 1)",
    )
    places.add_argument("--ray", action="store_true", help="workers are actors of a Ray cluster")
    places.add_argument(
        "--max-batch", metavar="N", type=int, default=8, help="answers in one pass (default: 8)"
    )

    models = parser.add_argument_group("models")
    models.add_argument("--model", metavar="M", help=MODELS)
    models.add_argument(
        "--name",
        help="what bodies may call the model (default: its name; of a folder, the last part)",
    )
    models.add_argument("--drafter", metavar="D", help=DRAFTERS)
    models.add_argument(
        "--draft-length",
        metavar="K",
        type=draft_length,
        default="auto",
        help="guesses in a row (default: auto, what pays in each round)",
    )
    add_place(models)
    add_pass(models)

    sampling = parser.add_argument_group(
        "defaults", "of lines that are bare prompts or messages; OpenAI's lines say it themselves"
    )
    for name, (kind, text) in OPTIONS.items():
        if name == "seed":
            continue
        default = 0.0 if name == "temperature" else getattr(Sampling, name)
        text += "" if default is None else f" (default: {default:g})"
        sampling.add_argument(
            "--" + name.replace("_", "-"), metavar="X", type=kind, default=default, help=text
        )
    sampling.add_argument("--max-tokens", metavar="N", type=int, default=256, help="(default: 256)")
    sampling.add_argument(
        "--stop", metavar="TEXT", action="append", default=[], help="ends an answer; repeatable"
    )
    sampling.add_argument("--raw", action="store_true", help="no chat template for bare prompts")
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="of the job; a line's own is made of it and of its custom_id or number (default: 0)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    source = Input(Path(args.input), args.seed, _defaults(args), args.limit)
    _check_counts(args)
    if args.dry_run:
        return _dry_run(source, _settings(args))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli/loading.py
    from forerun.batch.batch import Summary, batch

    teller = _Teller()
    answers = None
    if args.ray:
        from forerun.scale.ray_cluster import start_ray
        from forerun.scale.ray_data import answers_on_ray

        start_ray()  # if it cannot, before anything is written
        answers = partial(answers_on_ray, num_workers=args.workers)
    began = time.monotonic()
    summary: Summary = batch(
        source,
        args.out,
        _settings(args),
        workers=args.workers,
        answers=answers,
        retry_failed=args.retry_failed,
        on_failure=teller,
    )
    teller.end()
    print(_in_words(summary, time.monotonic() - began), file=sys.stderr)
    print(summary.output)
    return 1 if summary.num_failed else 0


class _Teller:
    """Prints failures with their line numbers: the first ones, and how many more there were."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, number: int, reason: str) -> None:
        from tqdm import tqdm

        self._count += 1
        if self._count <= MOST_TOLD:
            told = reason if reason.startswith("Line ") else f"Line {number}: {reason}"
            tqdm.write(f"failed: {told}", file=sys.stderr)  # above the bar, not within its line

    def end(self) -> None:
        if self._count > MOST_TOLD:
            print(f"failed: {self._count - MOST_TOLD} more; see the output", file=sys.stderr)


def _settings(args: argparse.Namespace) -> Any:
    from forerun.batch.answerer import Settings

    name = args.name
    if name is None and args.model is not None and Path(args.model).is_dir():
        name = Path(args.model).resolve().name
    return Settings(
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        lean=not args.no_lean,
        quantize=args.quantize,
        drafter=args.drafter or "auto",
        draft_length=args.draft_length,
        max_batch=args.max_batch,
        name=name,
        is_raw=args.raw,
    )


def _defaults(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of bare lines that flags give; what changes nothing is left out."""
    names = [name for name in OPTIONS if name != "seed"]
    values = {name: getattr(args, name) for name in names}
    Sampling(**values, seed=args.seed)
    kept = {
        name: v
        for name, v in values.items()
        if name == "temperature" or v != getattr(Sampling, name)
    }
    stop = {"stop": args.stop} if args.stop else {}
    return {"max_tokens": args.max_tokens, **kept, **stop}


def _check_counts(args: argparse.Namespace) -> None:
    """Check the counts before a model is loaded."""
    for name in ("workers", "max_batch", "max_tokens", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise InputError(explain(f"{flag} is too small.", value, "Use 1 or more."))
    if isinstance(args.draft_length, int) and args.draft_length < 0:
        wrong = "--draft-length is too small."
        raise InputError(explain(wrong, args.draft_length, "Use 0 or more."))


def _dry_run(source: Input, settings: Any) -> int:
    from forerun.batch.batch_routes import Judge

    source.digest()  # an unreadable file is told here
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
    """What bodies may call the model, as the loaded one would say."""
    if settings.name is not None:
        return str(settings.name)
    return (settings.model or NAME) + (f"-{settings.quantize}" if settings.quantize else "")


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def _in_words(summary: Any, seconds: float) -> str:
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
