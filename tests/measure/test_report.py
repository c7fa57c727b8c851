"""The report: one file, true to the records, safe for whatever a model may write."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from made_up_sweep import sweep

from forerun import prompts
from forerun.cli.sweep import render
from forerun.measure.figures import figures
from forerun.measure.naming import cell_words
from forerun.measure.records import Interval, Records, Run, Sample, Token
from forerun.measure.summary import Summary, summarise

pytest.importorskip("matplotlib")

from forerun.measure.plots import draw
from forerun.measure.report import report
from forerun.measure.report.all_figures import all_figures
from forerun.measure.report.checks import checks, tiles
from forerun.measure.report.leaderboard import leaderboard
from forerun.measure.results import Results
from forerun.measure.verdict import advice, headline

HOSTILE = '<script>alert("&")</script>'
VOID = {"meta", "link", "input", "br", "path", "use", "rect"}


@pytest.fixture(scope="module")
def results() -> Results:
    records = Records()
    for line in sweep(lengths=(1, 3, "auto"), temperatures=(0.0,), per_group=2, repeats=1):
        if isinstance(line, Sample):
            line = replace(line, tokens=[*line.tokens, Token(HOSTILE, "accepted", 0.25)])
        records.add(line)
    return Results(records)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return report(results, list(draw(results)))


class Outline(HTMLParser):
    """Tags in order, checked to be closed in order; what is linked to; ids; text by tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.named: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "aria-labelledby":
                self.named += (value or "").split()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


def test_the_page_needs_nothing_beside_it(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    assert all(link.startswith(("#", "data:")) for link in outline.links)
    assert not re.search(r"@import|url\((?!#)", page)
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)


def test_ids_are_unique_and_every_figure_is_named(page: str) -> None:
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.named) <= set(outline.ids)
    figures_drawn = page.count("<figure")
    assert figures_drawn == page.count('role="img"') == 12
    assert {"p0-title", "p0-reading", f"p{figures_drawn - 1}-title"} <= set(outline.named)


def test_colours_of_the_plots_are_the_pages(page: str) -> None:
    svgs = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert not re.search(r"#[0-9a-fA-F]{6}\b", svgs)
    used = set(re.findall(r"var\(--([a-z-]+)\)", svgs))
    assert {"blue", "vermilion", "green", "soft"} <= used
    themes = re.findall(r":root \{(.*?)\}", page, flags=re.DOTALL)
    assert len(themes) == 2  # light and dark
    for theme in themes:
        assert used <= {*re.findall(r"--([a-z-]+):", theme), "font"}


def test_what_a_model_wrote_stays_text(page: str) -> None:
    outline = Outline(page)
    assert HOSTILE not in page
    assert any(HOSTILE in text for tag, text in outline.texts if tag == "span")
    assert sum(tag == "script" for tag, _ in outline.texts) == 1


def test_tokens_carry_fate_and_probability(page: str, results: Results) -> None:
    (sample,) = results.records.samples
    tokens = re.findall(r'<span class="token (\w+)" style="--p:([\d.]+)" title="([^"]*)">', page)
    assert [fate for fate, _, _ in tokens] == [token.fate for token in sample.tokens]
    for (_, share, words), token in zip(tokens, sample.tokens, strict=True):
        assert float(share) == pytest.approx(token.probability, abs=6e-4)
        assert words.endswith(f"probability {token.probability:.1%}")


def test_the_leaderboard_shows_each_groups_own_speedup(page: str, results: Results) -> None:
    table = re.search(r"<h3>Speed-up by task group, batch 1, greedy.*?</table>", page, re.DOTALL)
    assert table is not None
    head = re.findall(r'<th scope="col">([^<]*)</th>', table[0])
    assert head == ["drafter", *prompts.GROUPS.values(), "overall", "tokens per round"]
    row = re.search(r'<th scope="row">heads, K = 3</th>(.*?)</tr>', table[0])
    assert row is not None
    shown = re.findall(r"(?:<b>|>)([\d.]+)×", row[1])
    expected = []
    for group in [*prompts.GROUPS, None]:
        cells = {each.cell: each for each in figures(results.records.runs, group=group)}
        heads = next(
            each
            for cell, each in cells.items()
            if (cell.drafter, cell.draft_length, cell.batch) == ("heads", 3, 1)
        )
        assert heads.speedup is not None
        expected.append(f"{heads.speedup.mean:.2f}")
    assert shown == expected


def test_every_cell_is_in_the_table_of_all_figures(page: str, results: Results) -> None:
    table = page[page.index("All cells") :]
    assert table.count('<th scope="row">') == len(results.figures)


def test_a_speed_with_the_prompt_that_is_not_known_is_a_dash(results: Results) -> None:
    first, *others = results.records.runs
    records = Records(runs=[replace(first, read_prompts=False), *others])
    table = all_figures(Results(records))
    (row,) = re.findall(r'<th scope="row">plain</th><td>0</td><td>1</td>(.*?)</tr>', table)
    assert re.sub(r"<small>.*?</small>", "", row).split("</td><td>")[3] == "–"
    assert all_figures(results).count("–") < table.count("–")


def test_promises_are_checked_in_a_section_of_their_own(page: str, results: Results) -> None:
    assert f'<div class="card checks">{checks(summarise(results.records))}</div>' in page
    first, *others = results.records.predictions
    too_much = replace(first, speedup=Interval(9.0, 8.0, 10.0))
    summary = summarise(Records(runs=results.records.runs, predictions=[too_much, *others]))
    assert len(summary.misses) == 1
    assert len(summary.autos) == 3 * 2
    section = checks(summary)
    assert "11 of 12 cells" in section
    assert section.count('<th scope="row">') == 1 + 3 * 2
    values = f"<td>9.00×</td><td>{summary.misses[0].measured:.2f}×</td>"
    assert f'<th scope="row">{cell_words(first.cell)}</th>{values}' in section
    assert summary.worst_replay is not None
    assert f"within {summary.worst_replay.error:.1%}" in section
    assert checks(Summary(0, [], [], [])) == ""


def test_texts_that_differ_are_counted(results: Results) -> None:
    same, compared = results.same_text
    assert (
        same
        == compared
        == sum(
            len(run.answers)
            for run in results.records.runs
            if run.cell.drafter is not None and run.cell.peer is None
        )
    )
    records = Records(headers=results.records.headers)
    for number, run in enumerate(results.records.runs):
        answers = run.answers
        if number == len(results.records.runs) // 2:
            assert run.cell.drafter is not None
            answers = [replace(answers[0], digest="another"), *answers[1:]]
        records.add(replace(run, answers=answers))
    assert Results(records).same_text == (compared - 1, compared)


def test_the_answer_is_no_where_plain_decoding_wins(results: Results) -> None:
    assert headline(results).startswith("Yes: ")
    some = Results(_slowed_at(results, 4, 4))
    first, second = headline(some).splitlines()
    assert first.startswith("Yes at batch 1, greedy: ")
    assert second == "No at batch 4, greedy: plain decoding is faster."
    assert advice(some, some.settings[0]).startswith("Use heads")
    assert advice(some, some.settings[1]).startswith(
        "Do not speculate here. The fastest of 9 cells, "
    )
    assert headline(Results(_slowed_at(some, 1, 4))) == "No: plain decoding is faster."


def test_what_is_not_clear_is_said_first(results: Results) -> None:
    """Batch 4 is slowed by its own gain: the speed-up is about 1, and the interval contains it."""
    gain = results.gain(results.settings[1])
    assert gain is not None
    records = _slowed_at(results, 4, gain.speedup.mean)
    unclear = Results(records)
    first, second = headline(unclear).splitlines()
    assert first.startswith("Not clear at batch 4, greedy: 1.0")
    assert first.endswith("the speed of plain decoding, and the interval contains 1.")
    assert second.startswith("Yes at batch 1, greedy: ")
    found = advice(unclear, unclear.settings[1])
    assert found.startswith("Not clear: the interval contains 1. The fastest of 9 cells, ")
    assert "not clear: " not in tiles(unclear)
    assert "not clear: " in tiles(Results(_slowed_at(results, 1, gain.speedup.mean)))
    known = {answer.prompt for run in results.records.runs for answer in run.answers}
    kept = [run for run in records.runs if run.answers[0].prompt != min(known)]
    few = Results(Records(runs=[run for run in kept if run.cell.batch == 1]))
    assert headline(few) == "Not clear: fewer than 12 prompts were measured."
    assert "11 prompts are too few" in advice(few, few.settings[0])


def test_the_speed_up_is_that_on_prompts_the_cell_was_not_chosen_on(results: Results) -> None:
    setting = results.settings[0]
    gain, best = results.gain(setting), results.winner(setting)
    assert gain is not None
    assert best is not None
    assert best.speedup is not None
    assert f'<div class="value">{gain.speedup.mean:.2f}×</div>' in tiles(results)
    assert f"Expect {gain.speedup.mean:.2f}× plain decoding" in advice(results, setting)
    assert f"it has {best.speedup.mean:.2f}× on the prompts" in advice(results, setting)


def test_the_shell_says_what_the_page_says(page: str, results: Results) -> None:
    shown = render(results.records)
    for told in (headline(results), *(advice(results, each) for each in results.settings)):
        assert told in shown
        assert escape(told) in page


def test_the_leaderboard_colours_only_what_is_clear(results: Results) -> None:
    """Two prompts of each group are never clear; all twelve together are."""
    table = leaderboard(results, results.settings[0])
    groups, overall = [], []
    for row in re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", table)[1:]:  # not plain itself
        *first, last, _ = re.findall(r"<td.*?</td>", row)
        groups += first
        overall.append(last)
    assert len(groups) == 6 * len(overall)
    assert all('class="unclear"' in value for value in groups if "–" not in value)
    assert all("over 2 prompts" in value for value in groups if "–" not in value)
    assert any('class="heat"' in value for value in overall)
    bold = [value for value in overall if "<b>" in value]
    assert len(bold) == 1
    assert "--blue" in bold[0]
    assert "<b>" not in "".join(groups)


def _slowed_at(results: Results, batch: int, factor: float) -> Records:
    """The records, with all cells that draft at that batch slower by a factor."""
    return Records(
        runs=[
            _slowed(run, factor if run.cell.drafter and run.cell.batch == batch else 1)
            for run in results.records.runs
        ]
    )


def _slowed(run: Run, factor: float) -> Run:
    answers = [
        replace(a, seconds=factor * a.seconds, first_seconds=factor * a.first_seconds)
        for a in run.answers
    ]
    return replace(run, answers=answers)
