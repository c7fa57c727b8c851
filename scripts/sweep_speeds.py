"""Tokens per second of every cell of a sweep, as a small JSON file beside its records.

    python scripts/sweep_speeds.py [FOLDER]      # reads sweep.jsonl.gz, which takes ten seconds

scripts/results.py makes a table from it: {batch: {drafter: {draft length: tokens per second}}}.
Length 0 is plain decoding.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from forerun.measure.figures import figures
from forerun.measure.records import read_records

SWEEP = Path(__file__).parents[1] / "benchmarks" / "results" / "x86-2-cores-earlier" / "sweep"


def speeds(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    plain: dict[str, float] = {}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for entry in figures(read_records(folder).runs):
        batch, drafter = str(entry.cell.batch), entry.cell.drafter
        speed = round(entry.tokens_per_second.mean, 2)
        if drafter in (None, "none"):
            plain[batch] = speed
        else:
            length = str(entry.cell.draft_length)
            found.setdefault(batch, {}).setdefault(drafter, {})[length] = speed
    for batch, drafters in found.items():
        for by_length in drafters.values():
            by_length["0"] = plain[batch]
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SWEEP
    text = json.dumps(speeds(folder), indent=1, sort_keys=True)
    (folder / "speeds.json").write_text(text + "\n", encoding="utf-8")
