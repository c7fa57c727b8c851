"""`forerun sweep`: measures every setting in turns and saves the runs to a folder; can be
resumed."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun import rules
from forerun.base.errors import InputError, explain
from forerun.cli.lists import counts, numbers, picture_path
from forerun.cli.loading import load_drafter, load_target
from forerun.cli.prompts import read_subject
from forerun.drafters import Drafter
from forerun.generation.choosing import drafters_for
from forerun.measure.figures import Figures, figures, groups
from forerun.measure.grid import check_batches, repeats_of
from forerun.measure.log import Log
from forerun.measure.records import Records, Run
from forerun.measure.results import Results
from forerun.measure.summary import in_words, summarise
from forerun.measure.sweep import sweep
from forerun.measure.verdict import advice, headline
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling

if TYPE_CHECKING:
    from forerun.scale.ray_sweep import Load, SweepOnRay


def run(args: argparse.Namespace) -> int:
    """Run all settings that are missing, and print the table, the verdict and the summary."""
    names, prompts = read_subject(args)
    lengths = draft_lengths(args.draft_length)
    trees = counts("--tree", args.tree) if args.tree else []
    batches = counts("--batch", args.batch)
    temperatures = numbers("--temperature", args.temperature)
    repeats = counts("--repeats", args.repeats)
    repeats_of(batches, repeats)
    _check(args, batches, trees, temperatures)
    check_batches(batches, len(prompts))
    save = None if args.plot is None else picture_path(args.plot)
    log = Log(args.out, skip_corrupt=args.skip_corrupt)
    for number, reason in log.records.skipped.items():
        print(f"note: line {number} is corrupt and skipped: {reason}", file=sys.stderr)
    load = partial(load_all, args.model, tuple(names), args.device, args.dtype)
    spread = _spread(args, load) if args.ray else None
    target, drafters = load()
    try:
        records = sweep(
            target,
            drafters,
            prompts,
            log,
            draft_lengths=lengths,
            trees=trees,
            batches=batches,
            temperatures=temperatures,
            rule=args.rule,
            repeats=repeats,
            max_new_tokens=args.max_tokens,
            seed=args.seed,
            against=args.against,
            predict=not args.no_predict,
            read_prompts_once=args.read_prompts_once,
            command=_command(),
            spread=spread,
        )
    except KeyboardInterrupt:
        count = len(log.records.runs)
        saved = f"{count} run{'s' * (count != 1)} saved; the same command goes on from there"
        print(f"\n{saved}", file=sys.stderr)
        return 130
    print(render(records))
    if words := in_words(summarise(records)):
        print("\n".join(["", *words]))
    for path in () if save is None else _drawn(Results(records), save):
        print(f"wrote {path}", file=sys.stderr)
    print(f"\nwrote {log.path}; look at it with: forerun plot {shlex.quote(args.out)}")
    return 0


def load_all(
    target: str | None, names: Sequence[str], device: str | None, dtype: str | None
) -> tuple[Any, dict[str, Drafter]]:
    """Load the target, and the drafters by name."""
    drafters = {name: load_drafter(name, device, dtype) for name in names}
    model = load_target(target, device, dtype)
    return model, drafters_for(model, drafters)


def _spread(args: argparse.Namespace, load: Load) -> SweepOnRay:
    """An object that runs the sweep on a Ray cluster, which is started here if necessary."""
    from forerun.scale.ray_cluster import start_ray
    from forerun.scale.ray_sweep import SweepOnRay

    start_ray()  # if it cannot, before a model is loaded
    return SweepOnRay(
        load, max_new_tokens=args.max_tokens, read_prompts_once=args.read_prompts_once
    )


def _drawn(results: Results, path: Path) -> Iterator[Path]:
    """Draw tokens per second and acceptance by draft length; yields one file for each setting."""
    from forerun.measure.plots import save_plot
    from forerun.measure.plots.by_draft_length import by_draft_length

    for setting in results.settings:
        if (plot := by_draft_length(results, setting)) is not None:
            is_only = len(results.settings) == 1
            place = path if is_only else path.with_stem(f"{path.stem}-{setting.name}")
            save_plot(plot, [place])
            yield place


def draft_lengths(text: str) -> list[DraftLength]:
    """Parse `0..4,auto` -> [0, 1, 2, 3, 4, "auto"]."""
    parts = text.split(",")
    fixed = [part for part in parts if part != "auto"]
    lengths: list[DraftLength] = list(counts("--draft-length", ",".join(fixed))) if fixed else []
    return [*lengths, "auto"] if "auto" in parts else lengths


def render(records: Records) -> str:
    """The results as text: one line per setting, the best speed-ups by task group, and the
    verdict."""
    head = f"{'drafter':<28} {'K':>4} {'batch':>5} {'temp':>5}  {'tokens/s':>8}  "
    lines = [head + f"{'tokens per round':>16}  {'accepted':>8}  speed-up here"]
    results = Results(records)
    lines += [_line(entry) for entry in sorted(results.figures, key=_order)]
    batch, temperature = min((run.cell.batch, run.cell.temperature) for run in records.runs)
    runs = [r for r in records.runs if (r.cell.batch, r.cell.temperature) == (batch, temperature)]
    if len(tasks := groups(runs)) > 1:
        where = f"batch {batch}, temperature {temperature:g}"
        lines += ["", f"speed-up by task group, at the K fastest on these prompts ({where})"]
        lines += [f"{task:<28} {_best_of_group(runs, task)}" for task in tasks]
    lines += ["", headline(results)]
    lines += [f"{setting.words}: {advice(results, setting)}" for setting in results.settings]
    notes = dict.fromkeys(note for run in records.runs for note in run.notes)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def _order(entry: Figures) -> tuple[Any, ...]:
    """A sort key for the table: by batch, ours before other engines, plain first, `auto` last."""
    cell = entry.cell
    length = sys.maxsize if cell.draft_length == "auto" else cell.draft_length
    whose = (cell.batch, cell.temperature, cell.peer or "")
    return *whose, cell.drafter or "", cell.tree or 0, length


def _line(entry: Figures) -> str:
    """One line of the table."""
    cell = entry.cell
    name = (cell.drafter or "plain").rstrip("/").split("/")[-1]
    name += f" tree {cell.tree}" if cell.tree else ""
    name += f" ({cell.peer})" if cell.peer else ""
    is_counted = any(entry.acceptance_by_position)
    accepted = f"{entry.acceptance_rate.mean:.0%}" if is_counted else "-"
    speed = "-" if entry.speedup is None else f"{entry.speedup.mean:.2f}x"  # the verdict's has ends
    return (
        f"{name[:28]:<28} {cell.draft_length!s:>4} {cell.batch:>5} {cell.temperature:>5g}  "
        f"{entry.tokens_per_second.mean:>8.1f}  {entry.tokens_per_round.mean:>16.2f}  "
        f"{accepted:>8}  {speed}"
    )


def _best_of_group(runs: Sequence[Run], task: str) -> str:
    """A line with the speed-up of each drafter's fastest setting in a task group."""
    best: dict[str, Figures] = {}
    for entry in figures(runs, group=task):
        name = entry.cell.drafter
        if name is not None and entry.cell.peer is None and entry.speedup is not None:
            known = best.get(name)
            if known is None or known.speedup is None or entry.speedup.mean > known.speedup.mean:
                best[name] = entry
    return "  ".join(
        f"{name.rstrip('/').split('/')[-1]} {entry.speedup.mean:.2f}x "
        f"(K = {entry.cell.draft_length})"
        for name, entry in sorted(best.items())
        if entry.speedup is not None
    )


def _command() -> str:
    """The command line for the record, with absolute paths cut to file names."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["forerun", *words])


def _check(
    args: argparse.Namespace,
    batches: Sequence[int],
    trees: Sequence[int],
    temperatures: Sequence[float],
) -> None:
    """Check the arguments before a model is loaded."""
    rules.get(args.rule)
    for temperature in temperatures:
        Sampling(temperature=temperature, seed=args.seed)
    for flag, values in (("--batch", batches), ("--tree", trees)):
        if any(value < 1 for value in values):
            raise InputError(explain(f"{flag} is too small.", min(values), "Use 1 or more."))
