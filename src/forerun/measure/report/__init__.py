"""The sweep as one HTML page, in a single file that needs no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from forerun.base import drawing
from forerun.measure.naming import Setting
from forerun.measure.plots import Plot
from forerun.measure.report.all_figures import all_figures, generation
from forerun.measure.report.checks import checks, tiles
from forerun.measure.report.leaderboard import leaderboard
from forerun.measure.results import Results
from forerun.measure.summary import summarise
from forerun.measure.verdict import advice, headline


def report(results: Results, plots: Sequence[Plot]) -> str:
    """The HTML of the page."""
    drawn = {id(plot): _figure(plot, number) for number, plot in enumerate(plots)}
    across = "".join(drawn[id(plot)] for plot in plots if plot.setting is None)
    return Template(_part("page.html")).substitute(
        target=escape(results.figures[0].cell.target),
        style=_part("style.css"),
        script=_part("settings.js"),
        headline=escape(headline(results)),
        tiles=tiles(results),
        switch=_switch(results.settings),
        settings="".join(
            _setting(results, setting, [drawn[id(p)] for p in plots if p.setting == setting])
            for setting in results.settings
        ),
        across=_section("across", "Across settings", f'<div class="across">{across}</div>')
        if across
        else "",
        checks=_checks(results),
        generation=_generation(results),
        all_figures=all_figures(results),
        machine=_machine(results),
    )


def _part(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8").strip()


def _figure(plot: Plot, number: int) -> str:
    title = f'<h3 id="p{number}-title">{escape(plot.title)}</h3>'
    reading = f'id="p{number}-reading" class="reading">{escape(plot.reading)}'
    return (
        f'<figure data-plot="{escape(plot.name)}">{title}{inline(plot, number)}'
        f"<figcaption {reading}</figcaption></figure>"
    )


def _switch(settings: Sequence[Setting]) -> str:
    """Buttons to choose a setting; hidden until the script shows that it works."""
    if len(settings) < 2:
        return ""
    buttons = "".join(
        f'<label><input type="radio" name="setting" value="{setting.name}"'
        f"{' checked' if setting == settings[0] else ''}>"
        f"<span>{escape(setting.words)}</span></label>"
        for setting in settings
    )
    return f'<form id="settings" aria-label="batch size and temperature" hidden>{buttons}</form>'


def _setting(results: Results, setting: Setting, figures: Sequence[str]) -> str:
    words = setting.words[0].upper() + setting.words[1:]
    return (
        f'<div class="setting" id="{setting.name}"><p class="advice"><b>{escape(words)}.</b> '
        f'{escape(advice(results, setting))}</p><div class="plots">{"".join(figures)}</div>'
        f'<div class="card">{leaderboard(results, setting)}</div></div>'
    )


def _checks(results: Results) -> str:
    paragraphs = checks(summarise(results.records))
    if not paragraphs:
        return ""
    return _section("checks", "Are we right?", f'<div class="card checks">{paragraphs}</div>')


def _generation(results: Results) -> str:
    if results.sample is None:
        return ""
    card = f'<div class="card">{generation(results.sample)}</div>'
    return _section("tokens", "Token by token", card)


def _section(name: str, title: str, content: str) -> str:
    heading = f'<h2 id="{name}">{escape(title)}</h2>'
    return f'<section aria-labelledby="{name}">{heading}{content}</section>'


def _machine(results: Results) -> str:
    """The machine and versions of the latest start of the sweep."""
    rows: list[tuple[str, str]] = []
    for header in results.records.headers[-1:]:
        machine = header.machine
        packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
        rows = [
            ("command", machine.command),
            ("device", f"{machine.device}, {machine.dtype}"),
            ("processor", f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads"),
            ("load at the start", f"{machine.load:g}"),
            ("versions", f"forerun {machine.forerun}, Python {machine.python}, {packages}"),
            ("prompts", f"{len(header.prompts)}, up to {header.max_new_tokens} new tokens each"),
            ("seed", str(header.seed)),
        ]
    notes = dict.fromkeys(note for run in results.records.runs for note in run.notes)
    rows += [("note", note) for note in notes]
    if skipped := results.records.skipped:
        rows.append(("corrupt lines left out", ", ".join(map(str, skipped))))
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)


VARIABLES = {
    drawing.BLUE: "blue",
    drawing.VERMILION: "vermilion",
    drawing.GREEN: "green",
    drawing.PINK: "pink",
    drawing.ORANGE: "orange",
    drawing.SKY: "sky",
    drawing.GREY: "soft",
    "#ffffff": "on-mark",
}


def inline(plot: Plot, number: int) -> str:
    """The plot as the <svg> element with this number; its marks have tooltips.

    Matplotlib writes colours as they were drawn.  They become CSS variables of the page, so one
    drawing serves light and dark, and the reader's own choice between them decides.
    """
    text = drawing.as_svg(plot.figure)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None, "matplotlib always writes a view box"
    text = text[text.index("<defs>") :]
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'="[^"]*"', lambda match: _attribute(match[0]), text)
    text = re.sub(r">\s+<", "><", text)
    text = _with_own_ids(_explained(text, plot), f"p{number}-")
    label = f'role="img" aria-labelledby="p{number}-title p{number}-reading"'
    return f'<svg {view[0]} {label} xmlns:xlink="http://www.w3.org/1999/xlink">{text.strip()}'


def _attribute(text: str) -> str:
    """Replace our colours by variables, and leave out fonts, line breaks and digits beyond a
    hundredth."""
    for colour, variable in VARIABLES.items():
        text = re.sub(colour, f"var(--{variable})", text, flags=re.IGNORECASE)
    text = re.sub(r" ?font-family:[^;\"]*;?", "", text)
    text = re.sub(r"(font:[^;\"]*?px) [^;\"]*", r"\1 var(--font)", text)
    text = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", text)
    return re.sub(r"\s+", " ", text)


def _explained(text: str, plot: Plot) -> str:
    """Add a tooltip to each mark that has one."""

    def title(match: re.Match[str]) -> str:
        return f'<g class="mark"><title>{escape(plot.tips[match[1]])}</title>'

    return re.sub(r'<g id="(mark-\d+)">', title, text)


def _with_own_ids(text: str, prefix: str) -> str:
    """Keep only ids that are referenced, and prefix them to be unique within the page."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{prefix}{match[1]}"' if match[1] in used else ""

    text = re.sub(r' id="([^"]+)"', renamed, text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)
