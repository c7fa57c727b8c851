"""A report as a table for the terminal."""

from __future__ import annotations

import textwrap

from forerun.audit.findings import Finding, Report, Status

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
