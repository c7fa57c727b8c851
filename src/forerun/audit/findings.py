"""What an audit says: a finding for every check, and all of them in a report."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"  # a difference that rounding explains, or that nobody promised not to have
    UNCLEAR = "not clear"  # nothing was found, by a test that could have found next to nothing
    UNKNOWN = "not tested"  # the endpoint lacks what the check needs, or the budget was too small


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    interval: of `measure`, 99%.  would_catch: the smallest fault that would have been found.
    """

    check: str
    status: Status
    summary: str
    measure: str = ""
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    would_catch: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    num_tokens: int = 0  # that the check spent
    num_requests: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.value}


@dataclass(frozen=True)
class Report:
    """All findings, and how they were come by."""

    url: str
    model: str | None
    findings: Sequence[Finding]
    is_speculating: bool | None  # None: cannot be told
    speculation: str  # how that is known
    level: float
    settings: Mapping[str, Any]
    num_requests: int
    num_tokens: int
    num_prompt_tokens: int
    seconds: float
    date: str
    version: str

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is Status.FAILED]

    @property
    def is_sound(self) -> bool:
        """Nothing was found wrong."""
        return not self.failed

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.failed:
            names = ", ".join(finding.check for finding in self.failed)
            return f"Found wrong: {names}."
        tested = [f for f in self.findings if f.status in (Status.PASSED, Status.NOTED)]
        if not tested:
            return "Nothing could be tested."
        rest = ""
        for words, status in (("Not clear", Status.UNCLEAR), ("Not tested", Status.UNKNOWN)):
            checks = [finding.check for finding in self.findings if finding.status is status]
            rest += f"  {words}: {', '.join(checks)}." if checks else ""
        if self.is_speculating is False:
            return f"The endpoint does not speculate; nothing else was found wrong.{rest}"
        return f"Nothing was found wrong.{rest}"

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self) | {"findings": [finding.to_dict() for finding in self.findings]}
        return {"verdict": self.verdict, "is_sound": self.is_sound} | fields

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return table(self)


MARKS = {
    Status.PASSED: "✓",
    Status.FAILED: "✗",
    Status.NOTED: "~",
    Status.UNCLEAR: "?",
    Status.UNKNOWN: "?",
}
WIDTH = 100
LEGEND = (
    "law: whether text follows the distribution of one-token requests for the same places.  "
    "e-value: what bets against that made of 1; an honest endpoint reaches 100 in at most one "
    "audit of 100, however long it runs."
)


def table(report: Report) -> str:
    """The report for a terminal."""
    on = {True: "yes", False: "no", None: "cannot be told"}[report.is_speculating]
    lines = [
        f"{report.url}  model {report.model or 'not named'}",
        f"speculating: {on} ({report.speculation})",
        "",
    ]
    for finding in report.findings:
        lines += _lines(finding)
    lines += [
        "",
        report.verdict,
        f"{report.num_requests} requests, {report.num_tokens} tokens generated, "
        f"{report.num_prompt_tokens} tokens of prompts, {report.seconds:.0f} s.  An honest "
        f"endpoint fails by chance in at most {report.level:.1%} of audits.",
    ]
    lines += textwrap.wrap(LEGEND, WIDTH)
    lines += [f"note: {note}" for note in report.settings.get("notes", ())]
    return "\n".join(lines)


def _lines(finding: Finding) -> list[str]:
    head = f"{MARKS[finding.status]} {finding.check:<17}{finding.status.value:<11}"
    indent = " " * len(head)
    lines = textwrap.wrap(head + finding.summary, WIDTH, subsequent_indent=indent)
    if finding.estimate is not None and finding.interval is not None:
        low, high = finding.interval
        words = f"{finding.measure}: {finding.estimate:+.3f} (99%: {low:+.3f} to {high:+.3f})"
        lines += textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=indent)
    if finding.would_catch and finding.status is not Status.FAILED:
        words = f"would have caught {finding.would_catch}"
        lines += textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines
