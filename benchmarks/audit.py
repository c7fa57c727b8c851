"""False alarms and power of `forerun audit`, on stand-in servers whose faults are known.

    python benchmarks/audit.py honest --audits 200     # at most 6 false alarms are allowed
    python benchmarks/audit.py power                   # every bad server, at the default budget

Both write into `audit.json`, which depends on no machine.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import forerun as fr
from forerun.audit.auditing import LEVEL
from forerun.audit.budget import Budget
from forerun.audit.check_law import LawCheck
from forerun.audit.dialects import Dialect
from forerun.audit.endpoint import Endpoint
from forerun.audit.journal import Journal
from forerun.audit.prompts import prompts
from forerun.audit.standins.gallery import BAD, HONEST, Exhibit
from machine import ANY, result_file, write

RESULTS = result_file("audit", folder=ANY)
BUDGET = 2000


def honest(num_audits: int) -> dict[str, Any]:
    """Audits of honest servers, each with a language, a seed and prompts of its own."""
    started = time.perf_counter()
    alarms: list[dict[str, Any]] = []
    evidence = []
    for number in range(num_audits):
        exhibit = HONEST[number % len(HONEST)]
        report = fr.audit(
            "http://stand-in/v1", transport=exhibit.server(number), seed=number, budget=BUDGET
        )
        assert report.num_tokens <= BUDGET
        law = next(finding for finding in report.findings if finding.check == "law")
        evidence.append(round(law.details["log_e_value"], 2))
        alarms += [
            {"audit": number, "server": exhibit.name, "summary": finding.summary}
            for finding in report.failed
        ]
        if number % 10 == 9:
            print(f"{number + 1} audits, {len(alarms)} alarms", flush=True)
    return {
        "audits": num_audits,
        "budget": BUDGET,
        "level": LEVEL,
        "servers": [exhibit.name for exhibit in HONEST],
        "false_alarms": len({alarm["audit"] for alarm in alarms}),
        "alarms": alarms,
        "largest_log_e_values_of_the_law": sorted(evidence)[-5:],
        "seconds": round(time.perf_counter() - started),
    }


def power(repeats: int, most: int, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for exhibit in BAD:
        if names and exhibit.name not in names:
            continue
        row = at_default(exhibit, repeats)
        if exhibit.check == "law" and row["found"] < repeats:
            row |= needs(exhibit, repeats, most)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def at_default(exhibit: Exhibit, repeats: int) -> dict[str, Any]:
    """Audits with the default budget."""
    found, tokens = 0, []
    for seed in range(repeats):
        report = fr.audit(
            "http://stand-in/v1", transport=exhibit.server(seed), seed=seed, budget=BUDGET
        )
        finding = next(one for one in report.findings if one.check == exhibit.check)
        found += finding in report.failed
        tokens.append(finding.num_tokens)
    return {
        "server": exhibit.name,
        "story": exhibit.story,
        "check": exhibit.check,
        "audits": repeats,
        "found": found,
        "tokens_spent_by_the_check": median(tokens),
    }


def needs(exhibit: Exhibit, repeats: int, most: int) -> dict[str, Any]:
    """The check of the law alone, with a budget of up to `most` tokens."""
    spent, looked = [], []
    for seed in range(repeats):
        endpoint = Endpoint(
            Journal(exhibit.server(seed), None, {}), Budget(most), Dialect("completions")
        )
        finding = LawCheck(endpoint, prompts(seed)).run()
        is_found = finding.status.value == "failed"
        spent.append(endpoint.budget.spent if is_found else None)
        looked.append(finding.details["tokens"] if is_found else None)
    return {"budget_needed": spent, "tokens_of_text_needed": looked, "largest_budget_tried": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("honest", "power"))
    parser.add_argument("--audits", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=30_000)
    parser.add_argument("--servers", nargs="*", default=[])
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if args.what == "honest":
        results["honest"] = honest(args.audits)
    else:
        rows = {row["server"]: row for row in results.get("power", [])}
        rows |= {row["server"]: row for row in power(args.repeats, args.most, args.servers)}
        results["power"] = list(rows.values())
    write(RESULTS, results)


if __name__ == "__main__":
    main()
