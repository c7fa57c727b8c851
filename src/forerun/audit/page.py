"""A report as one HTML page in a single file, to be shared."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

from forerun.audit.findings import MARKS, Finding, Report, Status


def page(report: Report) -> str:
    """The page's HTML; it uses the style of the sweep's report."""
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
    return (resources.files("forerun.audit") / name).read_text(encoding="utf-8").strip()


def _tiles(report: Report) -> str:
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
    model = f" --model {report.model}" if report.model else ""
    settings = report.settings
    return (
        f"forerun audit {report.url}{model} --budget {settings['budget']} "
        f"--seed {settings['seed']} --out audit"
    )


def _facts(report: Report) -> str:
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
