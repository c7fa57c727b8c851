"""`forerun plot`: draws the results of a sweep as pictures and as one HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.base.errors import InputError, explain
from forerun.cli.screen import waiting_for
from forerun.measure.records import read_records
from forerun.measure.results import Results
from forerun.measure.summary import in_words, summarise
from forerun.measure.verdict import headline

if TYPE_CHECKING:
    from forerun.measure.plots import Plot


def run(args: argparse.Namespace) -> int:
    """Draw the sweep; print its verdict and summary."""
    records = read_records(args.folder, skip_corrupt=args.skip_corrupt)
    for number, reason in records.skipped.items():
        print(f"note: line {number} is corrupt and left out: {reason}", file=sys.stderr)
    results, out = Results(records), Path(args.out or args.folder)
    from forerun.base.drawing import Paper, on
    from forerun.measure.plots import draw, save_plots, tokens
    from forerun.measure.report import report

    formats = _formats(args.format)
    paper = Paper(*_size(args.size), title=args.title, palette=args.palette)
    try:
        (out / "plots").mkdir(parents=True, exist_ok=True)
        with waiting_for("Drawing"):
            if not args.only:
                page = report(results, list(draw(results)))
                (out / "report.html").write_text(page, encoding="utf-8")
            with on(paper):
                drawn = [*draw(results), tokens(results)]  # a page shows tokens in a way of its own
                plots = _chosen([plot for plot in drawn if plot is not None], args.only)
                saved = save_plots(plots, out / "plots", formats)
    except OSError as error:
        cure = "Choose a folder that you may write to, with --out."
        wrong = f"The drawings cannot be written ({error.strerror})."
        raise InputError(explain(wrong, repr(str(out)), cure)) from error
    for line in (headline(results), *in_words(summarise(records))):
        print(line)
    page_at = "" if args.only else f"{out / 'report.html'}; "
    print(f"{page_at}{len(saved)} pictures in {out / 'plots'}")
    return 0


def _formats(text: str) -> list[str]:
    """The distinct file formats in `--format`, checked."""
    from forerun.base.drawing import FORMATS

    formats = list(dict.fromkeys(text.split(",")))
    if unknown := [kind for kind in formats if kind not in FORMATS]:
        cure = f"Use some of {','.join(FORMATS)}."
        raise InputError(explain("--format is no format of pictures.", ",".join(unknown), cure))
    return formats


def _size(text: str | None) -> tuple[float | None, float | None]:
    """Parse a size in inches: `3.3x2.4` -> (3.3, 2.4); without a height, (3.3, None)."""
    if text is None:
        return None, None
    width, cross, height = text.partition("x")
    try:
        sizes = float(width), float(height) if cross else None
    except ValueError as error:
        cure = "Write inches: 3.3, or 3.3x2.4."
        raise InputError(explain("--size is no size.", repr(text), cure)) from error
    if not all(1 <= size <= 40 for size in sizes if size is not None):
        raise InputError(explain("--size is out of bounds.", text, "Use 1 to 40 inches."))
    return sizes


def _chosen(plots: Sequence[Plot], kinds: Sequence[str]) -> Sequence[Plot]:
    """The plots of the named kinds; all plots if none are named."""
    known = list(dict.fromkeys(plot.kind for plot in plots))
    for kind in kinds:
        if not any(name.startswith(kind) for name in known):
            cure = f"This sweep has {', '.join(known)}."
            raise InputError(explain("There is no plot of that kind.", repr(kind), cure))
    return [plot for plot in plots if not kinds or plot.kind.startswith(tuple(kinds))]
