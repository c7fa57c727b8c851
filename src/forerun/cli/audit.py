"""`forerun audit URL`: is the speculation of an endpoint honest?  Asked from outside."""

from __future__ import annotations

import argparse
import os
import sys

from forerun.base.clock import now
from forerun.base.errors import InputError, explain

EVERY = 10.0
"""Seconds between two lines of a check that takes long."""

EXAMPLES = """examples:
  forerun audit http://localhost:8000/v1
  forerun audit https://example.com/v1 --model M --key-env MY_KEY --rate 2
  forerun audit http://localhost:8000/v1 --budget 20000 --out audit
  forerun audit http://localhost:8000/v1 --dry-run

The budget counts generated tokens.  An audit with --out that was stopped goes on where it was, and
leaves report.json and report.html there.  Exit status: 0 nothing found wrong, 1 something found
wrong, 2 the audit could not be made.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="is the speculation of an OpenAI-compatible endpoint lossless?",
        description="Test whether an endpoint's speculation keeps its own distribution.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="base URL of the API, ending in /v1")
    parser.add_argument("--model", help="(default: the first that the endpoint lists)")
    parser.add_argument("--key-env", metavar="VAR", help="environment variable with the API key")
    parser.add_argument("--budget", type=int, default=5000, help="generated tokens (default 5000)")
    parser.add_argument("--out", metavar="DIR", help="folder for journal and report")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, at most")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one answer")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--slack", type=float, help="what rounding may do to a ratio of chances")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be sent; send nothing"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from forerun.audit.auditing import Settings, audit

    if args.dry_run:
        from forerun.audit.dry_run import rehearse

        print(rehearse(Settings(args.url, args.model, args.budget, args.seed, args.slack)))
        return 0
    report = audit(
        args.url,
        model=args.model,
        key=_key(args.key_env),
        budget=args.budget,
        out=args.out,
        rate=args.rate,
        timeout=args.timeout,
        seed=args.seed,
        slack=args.slack,
        progress=None if args.json else Shown(),
    )
    print(report.to_json() if args.json else report)
    if args.out and not args.json:
        print(f"{args.out}/report.html, {args.out}/report.json")
    return 0 if report.is_sound else 1


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        cure = f"Set it, for example with: export {variable}=..."
        raise InputError(explain("There is no key in that variable.", variable, cure))
    return os.environ[variable]


class Shown:
    """Prints which check is running and what it has spent: when one begins, and now and then."""

    def __init__(self) -> None:
        self._check, self._next = "", 0.0

    def __call__(self, check: str, spent: int, budget: int) -> None:
        moment = now()
        if check == self._check and moment < self._next:
            return
        self._check, self._next = check, moment + EVERY
        print(f"{check} ... ({spent} of {budget} tokens spent)", file=sys.stderr, flush=True)
