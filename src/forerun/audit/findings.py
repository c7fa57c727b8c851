"""The results of an audit: a finding for each check, and the report, as text or as an HTML page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from html import escape
from importlib import resources
from string import Template
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

    check: its name.
    summary: what was found, in sentences.
    measure: what `estimate` estimates.
    interval: a 99% interval of `measure`.
    would_catch: the smallest fault that would have been found.
    details: further data for the report.
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
        """The finding as a dictionary for JSON."""
        return asdict(self) | {"status": self.status.value}


@dataclass(frozen=True)
class Report:
    """All findings of an audit, with its settings and costs."""

    url: str
    model: str | None
    findings: Sequence[Finding]
    is_speculating: bool | None
    """Whether the endpoint speculates; None where that is not known."""
    speculation: str
    """How it is known whether the endpoint speculates."""
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
        """The findings that report a fault."""
        return [finding for finding in self.findings if finding.status is Status.FAILED]

    @property
    def is_sound(self) -> bool:
        """Whether no check found a fault."""
        return not self.failed

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
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
        """The report as a dictionary for JSON, including the verdict."""
        fields = asdict(self) | {"findings": [finding.to_dict() for finding in self.findings]}
        return {"verdict": self.verdict, "is_sound": self.is_sound} | fields

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """The report for a terminal: verdict, a paragraph for each check, costs."""
        return table(self)


MARKS = {
    Status.PASSED: "✓",
    Status.FAILED: "✗",
    Status.NOTED: "~",
    Status.UNCLEAR: "?",
    Status.UNKNOWN: "?",
}
"""The mark with which a line begins, for each status."""
WIDTH = 100
LEGEND = (
    "law: whether text follows the distribution of one-token requests for the same places.  "
    "e-value: what bets against that made of 1; an honest endpoint reaches 100 in at most one "
    "audit of 100, however long it runs."
)
"""Explains the words of a report to those who read one for the first time."""


def table(report: Report) -> str:
    """The report as text for a terminal."""
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
    """A finding as lines for a terminal."""
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


def page(report: Report) -> str:
    """The report as an HTML page, in the style of the sweep's report."""
    style = resources.files("forerun.measure.report") / "style.css"
    return Template(_part("page.html")).substitute(
        url=escape(report.url),
        model=escape(report.model or "not named"),
        style=style.read_text(encoding="utf-8").strip(),
        verdict=escape(report.verdict),
        tiles=_tiles(report),
        findings="".join(map(_card, report.findings)),
        level=f"{report.level:.1%}",
        command=escape(_command(report)),
        facts=_facts(report),
    )


def _part(name: str) -> str:
    """The text of a template file."""
    return (resources.files("forerun.audit") / name).read_text(encoding="utf-8").strip()


def _tiles(report: Report) -> str:
    """The numbers at the top of the page, as HTML."""
    on = {True: "yes", False: "no", None: "?"}[report.is_speculating]
    passed = sum(finding.status is Status.PASSED for finding in report.findings)
    tiles = (
        ("speculating", on, report.speculation),
        ("checks passed", f"{passed}", f"of {len(report.findings)}"),
        ("found wrong", f"{len(report.failed)}", "checks"),
        ("tokens generated", f"{report.num_tokens:,}", f"in {report.num_requests:,} requests"),
        ("time", f"{report.seconds:.0f} s", report.date),
    )
    return "".join(
        f'<div class="tile"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="note">{escape(note)}</div></div>'
        for name, value, note in tiles
    )


def _card(finding: Finding) -> str:
    """A finding as HTML, with its estimate, interval and costs."""
    lines = [f"<p>{escape(finding.summary)}</p>"]
    if finding.estimate is not None and finding.interval is not None:
        low, high = finding.interval
        words = (
            f"{finding.measure}: {finding.estimate:+.3f}, 99% interval {low:+.3f} to {high:+.3f}."
        )
        lines.append(f'<p class="reading">{escape(words)}</p>')
    if finding.would_catch and finding.status is not Status.FAILED:
        words = f"It would have caught {finding.would_catch}."
        lines.append(f'<p class="reading">{escape(words)}</p>')
    spent = f"{finding.num_requests} requests, {finding.num_tokens} tokens."
    lines.append(f'<p class="reading">{escape(spent)}</p>')
    kind = finding.status.value.replace(" ", "-")
    head = f'<span class="mark">{MARKS[finding.status]}</span>{escape(finding.check)}'
    return (
        f'<div class="card finding {kind}"><h3>{head}: {escape(finding.status.value)}</h3>'
        f"{''.join(lines)}</div>"
    )


def _command(report: Report) -> str:
    """The command that repeats this audit."""
    model = f" --model {report.model}" if report.model else ""
    settings = report.settings
    return (
        f"forerun audit {report.url}{model} --budget {settings['budget']} "
        f"--seed {settings['seed']} --out audit"
    )


def _facts(report: Report) -> str:
    """Date, version and settings, as rows of an HTML list."""
    settings = report.settings
    rows = [
        ("date", report.date),
        ("version", f"forerun {report.version}"),
        ("route", str(settings["route"])),
        ("likeliest tokens told", str(settings["likeliest_tokens"])),
        ("tokens of prompts", f"{report.num_prompt_tokens:,}"),
        *(("note", note) for note in settings.get("notes", ())),
    ]
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
