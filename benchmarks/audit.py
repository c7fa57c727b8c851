"""False alarms and power of `forerun audit`, on stand-in servers whose faults are known.

    python benchmarks/audit.py honest --audits 60     # at each of three budgets
    python benchmarks/audit.py usual --audits 20      # five usual faults, within 2,000 requests
    python benchmarks/audit.py power                  # every bad server, at the default budget

All write into `audit.json`, which depends on no machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import forerun as fr
from forerun.audit.auditing import LEVEL, Settings
from forerun.audit.budget import Budget
from forerun.audit.check_law import LawCheck
from forerun.audit.dialects import Dialect
from forerun.audit.endpoint import Endpoint
from forerun.audit.findings import Finding, Report
from forerun.audit.journal import Journal
from forerun.audit.prompts import prompts
from machine import ANY, result_file, write

sys.path.append(str(Path(__file__).parents[1] / "tests" / "audit"))
from standins.gallery import BAD, HONEST, USUAL, Exhibit

RESULTS = result_file("audit", folder=ANY)
BUDGET = Settings.budget
BUDGETS = (500, 1000, 2000)
MOST_REQUESTS = 2000


def honest(num_audits: int, budget: int) -> dict[str, Any]:
    """Audits of honest servers, each with a language, a seed and prompts of its own."""
    started = time.perf_counter()
    alarms: list[dict[str, Any]] = []
    evidence = []
    for number in range(num_audits):
        exhibit = HONEST[number % len(HONEST)]
        report = audited(exhibit, number, budget)
        assert report.num_tokens <= budget
        evidence.append(round(finding(report, "law").details["log_e_value"], 2))
        alarms += [
            {"audit": number, "server": exhibit.name, "summary": failed.summary}
            for failed in report.failed
        ]
        if number % 10 == 9:
            print(f"{number + 1} audits, {len(alarms)} alarms", flush=True)
    return {
        "audits": num_audits,
        "budget": budget,
        "level": LEVEL,
        "chance_of_no_alarm_at_least": round((1 - LEVEL) ** num_audits, 3),
        "servers": [exhibit.name for exhibit in HONEST],
        "false_alarms": len({alarm["audit"] for alarm in alarms}),
        "alarms": alarms,
        "largest_log_e_values_of_the_law": sorted(evidence)[-5:],
        "seconds": round(time.perf_counter() - started),
    }


def usual(repeats: int, names: list[str]) -> list[dict[str, Any]]:
    """Whole audits of servers with the usual faults."""
    rows = []
    for exhibit in USUAL:
        if names and exhibit.name not in names:
            continue
        reports = [audited(exhibit, seed, BUDGET) for seed in range(repeats)]
        laws = [finding(report, "law") for report in reports]
        row = {
            "server": exhibit.name,
            "story": exhibit.story,
            "audits": repeats,
            "budget": BUDGET,
            "found_within_2000_requests": sum(
                bool(report.failed) and report.num_requests <= MOST_REQUESTS for report in reports
            ),
            "found_by": [[one.check for one in report.failed] for report in reports],
            "under": [law.details["suspect"] for law in laws],
            "requests": [report.num_requests for report in reports],
            "tokens_looked_at": [law.details["tokens"] for law in laws],
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def audited(exhibit: Exhibit, seed: int, budget: int) -> Report:
    server = exhibit.server(seed)
    return fr.audit("http://stand-in/v1", transport=server, seed=seed, budget=budget)


def finding(report: Report, check: str) -> Finding:
    return next(one for one in report.findings if one.check == check)


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
        report = audited(exhibit, seed, BUDGET)
        assert exhibit.check is not None, "a bad server"
        one = finding(report, exhibit.check)
        found += one in report.failed
        tokens.append(one.num_tokens)
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
        law = LawCheck(endpoint, prompts(seed)).run()
        is_found = law.status.value == "failed"
        spent.append(endpoint.budget.spent if is_found else None)
        looked.append(law.details["tokens"] if is_found else None)
    return {"budget_needed": spent, "tokens_of_text_needed": looked, "largest_budget_tried": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("honest", "usual", "power"))
    parser.add_argument("--audits", type=int, default=60)
    parser.add_argument("--budgets", type=int, nargs="*", default=BUDGETS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=30_000)
    parser.add_argument("--servers", nargs="*", default=[])
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if args.what == "honest":
        rows = {row["budget"]: row for row in results.get("honest", [])}
        rows |= {budget: honest(args.audits, budget) for budget in args.budgets}
        results["honest"] = list(rows.values())
    elif args.what == "usual":
        rows = {row["server"]: row for row in results.get("usual", [])}
        rows |= {row["server"]: row for row in usual(args.audits, args.servers)}
        results["usual"] = list(rows.values())
    else:
        rows = {row["server"]: row for row in results.get("power", [])}
        rows |= {row["server"]: row for row in power(args.repeats, args.most, args.servers)}
        results["power"] = list(rows.values())
    write(RESULTS, results)


if __name__ == "__main__":
    main()
