"""`forerun plot`: a sweep's folder as pictures and as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.cli.paint import waiting_for
from forerun.measure.records import read_records
from forerun.measure.summary import in_words, summarise

EXAMPLES = """examples:
  forerun plot sweep                        sweep/report.html, and SVG and PNG in sweep/plots
  forerun plot sweep --out figures          the same, elsewhere
  forerun plot sweep --skip-corrupt         without the lines that cannot be read
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plot",
        help="draw a sweep: pictures, and a report that opens from disk",
        description="Draw what `forerun sweep` measured, finished or not.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder that the sweep wrote (its --out)")
    parser.add_argument("--out", metavar="DIR", help="where the drawings go (default: beside it)")
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out unreadable lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    records = read_records(args.folder, skip_corrupt=args.skip_corrupt)
    for number, reason in records.skipped.items():
        print(f"note: line {number} is corrupt and left out: {reason}", file=sys.stderr)
    from forerun.measure.plots import Results, draw, save_plots, tokens
    from forerun.measure.report import report

    results = Results(records)
    out = Path(args.out or args.folder)
    try:
        (out / "plots").mkdir(parents=True, exist_ok=True)
        with waiting_for("Drawing"):
            plots = list(draw(results))
            page = report(results, plots)
            (out / "report.html").write_text(page, encoding="utf-8")
            pictures = [*plots, tokens(results)]  # the page shows tokens in a way of its own
            saved = save_plots([picture for picture in pictures if picture], out / "plots")
    except OSError as error:
        cure = "Choose a folder that you may write to, with --out."
        wrong = f"The drawings cannot be written ({error.strerror})."
        raise InputError(explain(wrong, repr(str(out)), cure)) from error
    for line in in_words(summarise(records)):
        print(line)
    print(f"{out / 'report.html'}: {len(plots)} plots; {len(saved)} pictures in {out / 'plots'}")
    return 0
