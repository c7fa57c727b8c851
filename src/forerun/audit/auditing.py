"""Runs an audit: finds out what the endpoint can do, runs the checks within the budget, reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forerun.audit.budget import Budget, SpentError
from forerun.audit.check_law import LawCheck
from forerun.audit.check_logprobs import check_logprobs, check_unchanged
from forerun.audit.check_options import LEVEL as OPTION_LEVEL
from forerun.audit.check_options import OptionCheck
from forerun.audit.check_repeats import check_repeats
from forerun.audit.check_stops import StopCheck
from forerun.audit.conditions import CONDITIONS
from forerun.audit.findings import Finding, Report, Status, page
from forerun.audit.journal import Journal
from forerun.audit.law_finding import LEVEL as LAW_LEVEL
from forerun.audit.meeting import Meeting, base_path, meet, token_id
from forerun.audit.prompts import prompts
from forerun.audit.questions import Chunk
from forerun.audit.speculating import Speculation, counters, judge
from forerun.audit.wire import Http, Polite, Transport
from forerun.audit.without_logprobs import check_law_by_pairs
from forerun.base.errors import InputError, explain, shown_by
from forerun.base.version import __version__

LEVEL = LAW_LEVEL + OPTION_LEVEL
"""The chance that an honest endpoint is called wrong by the checks that depend on chance: 0.9%."""
SHARES = {"stops and limits": 0.1, "repeatability": 0.2, "options": 0.2}
"""The largest share of the budget that each check may spend; the check of the law has the rest."""
FLOORS = {"stops and limits": 100, "repeatability": 310, "options": 300}
"""The tokens that a check needs to be complete. If its share of a small budget is less than this,
it gets up to a quarter of the budget."""
LEAST_BUDGET = 50
"""The smallest budget, in tokens, with which any check could show anything."""
JOURNAL = "journal.jsonl"
"""The name of the journal in the folder of an audit."""

Progress = Callable[[str, int, int], None]
"""A function called as p(check, tokens spent, budget)."""


@dataclass(frozen=True)
class Settings:
    """The settings that determine which questions an audit asks.

    url: up to and including /v1.
    model: None for the first model that the endpoint lists.
    budget: how many tokens may be generated.
    seed: of the prompts.
    slack: how far rounding may move the ratio of two probabilities; None to measure it.
    """

    url: str
    model: str | None = None
    budget: int = 5000
    seed: int = 0
    slack: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings with which an audit could not show anything."""
        if self.budget < LEAST_BUDGET:
            cure = f"Allow at least {LEAST_BUDGET} generated tokens; {Settings.budget} is usual."
            raise InputError(explain("The budget is too small.", self.budget, cure))
        if self.slack is not None and not 0 <= self.slack < 1:
            cure = "Use a number from 0 to 1, or leave it out to have it measured."
            raise InputError(explain("slack is out of range.", self.slack, cure))


@shown_by('fr.audit("http://localhost:8000/v1")')
def audit(
    url: str,
    *,
    model: str | None = None,
    key: str | None = None,
    budget: int = Settings.budget,
    out: str | os.PathLike[str] | None = None,
    rate: float = 20.0,
    timeout: float = 120.0,
    seed: int = 0,
    slack: float | None = None,
    transport: Transport | None = None,
    progress: Progress | None = None,
) -> Report:
    """Audit the speculation of an OpenAI-compatible endpoint, from outside.

    url: up to and including /v1.
    key: sent as a bearer token.
    budget: the most tokens to generate.
    out: folder for the report and the journal; with its journal, a stopped audit is resumed.
    rate: the most requests per second.
    seed: of the prompts.
    slack: how far rounding may move the ratio of two probabilities; None measures it.
    transport: carries requests instead of HTTP.
    """
    settings = Settings(url, model, budget, seed, slack)
    if rate <= 0:
        raise InputError(explain("rate is not positive.", rate, "Use requests a second, as 20."))
    folder = None if out is None else Path(out)
    if transport is None:
        transport = Polite(Http(url, key=key, timeout=timeout), rate)
    kept = {"url": url, "model": model, "budget": budget, "seed": seed, "slack": slack}
    journal = Journal(transport, None if folder is None else folder / JOURNAL, kept)
    started = time.perf_counter()
    try:
        report = Audit(settings, journal, progress).run()
    finally:
        journal.close()
    report = replace(report, seconds=time.perf_counter() - started)
    if folder is not None:
        (folder / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
        (folder / "report.html").write_text(page(report), encoding="utf-8")
    return report


def allowance(check: str, total: int) -> int | None:
    """The number of tokens of a budget that a check may spend; None: all that is left."""
    if check not in SHARES:
        return None
    return max(int(SHARES[check] * total), min(FLOORS[check], total // 4))


def _not_honoured(options: Finding) -> dict[str, str]:
    """The conditions that are not tested because the endpoint ignores their options, with that
    reason."""
    outcomes = options.details.get("outcomes", {})
    return {
        condition.name: f"{name} is not honoured"
        for condition in CONDITIONS
        for name in condition.options
        if outcomes.get(name) == "not honoured"
    }


class Audit:
    """One run of all checks.

    Each check has a share of the budget. Their order depends only on settings and answers, so an
    audit that is repeated with its journal continues where it stopped.
    """

    def __init__(
        self, settings: Settings, journal: Journal, progress: Progress | None = None
    ) -> None:
        """progress: called after every answer, with the check, the tokens spent and the budget."""
        self.settings, self.journal = settings, journal
        self.budget = Budget(settings.budget)
        self.prompts = prompts(settings.seed)
        self._progress = progress or (lambda *_: None)
        self._streams: list[Sequence[Chunk]] = []

    def run(self) -> Report:
        """Run all checks, the cheap and exact ones first. The check of the law gets the rest of the
        budget."""
        settings, base = self.settings, base_path(self.settings.url)
        met = meet(self.journal, self.budget, base, settings.model, self.prompts[0])
        root = base.removesuffix("/v1")
        before = counters(met.endpoint.fetch("metrics/before", f"{root}/metrics"))
        findings = [
            self._spend("stops and limits", lambda: StopCheck(met.endpoint).run()),
            self._spend("repeatability", lambda: self._repeats(met)),
        ]
        findings += self._of_laws(met, base)
        findings.append(check_unchanged(met.endpoint, self.prompts[0]))
        after = counters(met.endpoint.fetch("metrics/after", f"{root}/metrics"))
        speculation = judge(before, after, met.endpoint.told, self._streams)
        return self._report(met, findings, speculation)

    def _repeats(self, met: Meeting) -> Finding:
        """Check repeatability. Its streams are kept: they also show whether tokens arrive several
        at a time."""
        finding, streams = check_repeats(met.endpoint, self.prompts[0], has_seeds=met.has_seeds)
        self._streams += streams
        return finding

    def _of_laws(self, met: Meeting, base: str) -> list[Finding]:
        """Check options, the law and log-probabilities, as far as the endpoint provides what these
        need."""
        if not met.has_logprobs:
            lost = "Needs log-probabilities, which the endpoint does not give."
            pairs = self._spend("law", lambda: check_law_by_pairs(met.endpoint, self.prompts))
            unknown = [Finding(name, Status.UNKNOWN, lost) for name in ("options", "logprobs")]
            return [*unknown, pairs]

        def id_of(text: str) -> int | None:
            """The id of a token, for options that need ids."""
            return token_id(self.journal, base, met.model, text)

        options = self._spend(
            "options", lambda: OptionCheck(met.endpoint, self.prompts, id_of).run()
        )
        check = LawCheck(
            met.endpoint,
            self.prompts,
            seeded=met.has_seeds,
            slack=self.settings.slack,
            left_out=_not_honoured(options),
        )
        law = self._spend("law", check.run)
        return [options, law, check_logprobs(check.heard)]

    def _spend(self, name: str, check: Callable[[], Finding]) -> Finding:
        """Run a check within its share of the budget, and add what it spent to its finding."""
        spent, asked = self.budget.spent, self.budget.num_requests
        self.budget.on_answer = lambda: self._progress(name, self.budget.spent, self.budget.total)
        self.budget.on_answer()
        allowed = allowance(name, self.budget.total)
        with self.budget.share(max(0, self.budget.left - 1) if allowed is None else allowed):
            try:
                finding = check()
            except SpentError:
                finding = Finding(name, Status.UNKNOWN, "The budget did not last for this check.")
        return replace(
            finding,
            num_tokens=self.budget.spent - spent,
            num_requests=self.budget.num_requests - asked,
        )

    def _report(
        self, met: Meeting, findings: Sequence[Finding], speculation: Speculation
    ) -> Report:
        """Combine the findings with the settings and costs.

        The significance level applies to the checks that depend on chance; the others are exact.
        """
        settings: dict[str, Any] = {
            "budget": self.settings.budget,
            "seed": self.settings.seed,
            "route": met.endpoint.dialect.route,
            "likeliest_tokens": met.endpoint.dialect.num_top,
            "notes": list(met.notes),
        }
        return Report(
            self.settings.url,
            met.model,
            findings,
            speculation.is_on,
            speculation.reason,
            LEVEL,
            settings,
            self.budget.num_requests,
            self.budget.spent,
            self.budget.num_prompt_tokens,
            0.0,
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            __version__,
        )
