"""`forerun audit URL`: tests from outside whether an endpoint's speculation is lossless."""

from __future__ import annotations

import argparse
import os
import sys

from forerun.base.clock import now
from forerun.base.errors import InputError, explain

EVERY = 10.0
"""The shortest time, in seconds, between two progress lines of a check."""


def run(args: argparse.Namespace) -> int:
    """Audit the endpoint; print and save the report. Returns status 1 if a fault was found."""
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
    """The API key in an environment variable; None if no variable is named."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        cure = f"Set it, for example with: export {variable}=..."
        raise InputError(explain("There is no key in that variable.", variable, cure))
    return os.environ[variable]


class Shown:
    """Prints which check is running and how many tokens were spent, at each new check and every few
    seconds."""

    def __init__(self) -> None:
        self._check, self._next = "", 0.0

    def __call__(self, check: str, spent: int, budget: int) -> None:
        """Print a line if a check begins, or if the last line is `EVERY` seconds old."""
        moment = now()
        if check == self._check and moment < self._next:
            return
        self._check, self._next = check, moment + EVERY
        print(f"{check} ... ({spent} of {budget} tokens spent)", file=sys.stderr, flush=True)
