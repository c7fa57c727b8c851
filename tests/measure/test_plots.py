"""Plots of made-up sweeps: what they show must be what the records say."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_up_sweep import sweep, write

from forerun.base.errors import InputError
from forerun.cli import main
from forerun.measure.figures import figures
from forerun.measure.records import FILE, Cell, Record, Records, Run, Token

pytest.importorskip("matplotlib")

from matplotlib.image import imread
from numpy import unique

from forerun.base.drawing import GREY, PALETTES, Paper, on, titled
from forerun.measure.naming import Setting
from forerun.measure.plots import Plot, draw, save_plots
from forerun.measure.plots.by_batch import by_batch
from forerun.measure.plots.by_draft_length import by_draft_length, by_position
from forerun.measure.plots.over_time import over_time
from forerun.measure.plots.plot import spread
from forerun.measure.plots.predictions import predictions
from forerun.measure.plots.time_split import time_split
from forerun.measure.plots.tokens import COLUMNS, MAX_LINES, layout, tokens
from forerun.measure.results import Results
from forerun.measure.verdict import headline

SMALL = {"lengths": (1, 3, "auto"), "batches": (1, 2), "temperatures": (0.0,), "per_group": 1}


def as_records(lines: Iterable[Record]) -> Records:
    records = Records()
    for line in lines:
        records.add(line)
    return records


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(as_records(sweep(**SMALL, repeats=1)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plots(results: Results) -> list[Plot]:
    return list(draw(results))


def test_every_plot_is_drawn_for_every_setting(plots: list[Plot]) -> None:
    kinds = ("by_draft_length", "by_position", "time_split", "accepted_lengths", "over_time")
    by_setting = [f"{kind}-batch-{batch}-temperature-0" for batch in (1, 2) for kind in kinds]
    assert [plot.name for plot in plots] == [*by_setting, "by_batch-temperature-0", "predictions"]
    assert all(plot.title and plot.reading and plot.tips for plot in plots)


def test_marks_stand_at_the_measured_figures(results: Results) -> None:
    plot = by_draft_length(results, Setting(1, 0.0))
    assert plot is not None
    top = plot.figure.axes[0]
    marks = {line.get_gid(): line.get_ydata()[0] for line in top.lines if line.get_gid()}
    words = {plot.tips[name]: value for name, value in marks.items()}
    found = {
        (each.cell.drafter, each.cell.draft_length): each.tokens_per_second.mean
        for each in figures(results.records.runs)
        if each.cell.batch == 1 and each.cell.drafter and each.cell.peer is None
    }
    assert len(found) == 9
    for (drafter, length), value in found.items():
        start = f"{drafter}, {'auto K' if length == 'auto' else f'K = {length}'}: {value:.1f} "
        assert [mark for tip, mark in words.items() if tip.startswith(start)] == [value]


def test_positions_are_conditional_on_being_reached(results: Results) -> None:
    plot = by_position(results, Setting(1, 0.0))
    assert plot is not None
    heads = next(each for each in results.longest(Setting(1, 0.0)) if each.cell.drafter == "heads")
    answers = [a for run in results.records.runs if run.cell == heads.cell for a in run.answers]
    for slot in range(3):
        accepted = sum(each.accepted_by_position[slot] for each in answers)
        reached = sum(each.reached_by_position[slot] for each in answers)
        tip = f"heads, K = 3, position {slot + 1}: {accepted / reached:.0%} of {reached:,} accepted"
        assert tip in plot.tips.values()


def test_predictions_count_those_within_15_percent(results: Results) -> None:
    plot = predictions(results)
    assert plot is not None
    measured = {each.cell: each.speedup for each in results.figures}
    guesses = [(p.speedup.mean, measured[p.cell].mean) for p in results.records.predictions]  # type: ignore[union-attr]
    close = sum(0.85 <= guess / found <= 1.15 for guess, found in guesses)
    assert plot.title.startswith(f"{close} of {len(guesses)} predictions")
    assert len(guesses) == len(plot.tips) == 12


def test_time_shares_add_up(results: Results) -> None:
    plot = time_split(results, Setting(1, 0.0))
    assert plot is not None
    bars = plot.figure.axes[0].patches
    rows = len({round(bar.get_y(), 3) for bar in bars})
    assert rows == 4  # plain and three drafters; the peer tells no stages
    assert sum(bar.get_width() for bar in bars) == pytest.approx(rows)


def test_plain_decoding_that_wins_is_said_to_win() -> None:
    options: dict[str, Any] = {**SMALL, "per_group": 2, "drafters": ("ngram",), "peer": False}
    results = Results(as_records(map(_slower, sweep(**options, repeats=1))))
    plot = by_draft_length(results, Setting(1, 0.0))
    assert plot is not None
    assert plot.title.startswith("Do not speculate")


def test_too_few_prompts_make_no_promise_in_a_title(results: Results) -> None:
    drawn = by_draft_length(results, Setting(1, 0.0)), by_batch(results, 0.0)
    assert [plot is not None and plot.title.startswith("Not clear whether ") for plot in drawn] == [
        True,
        True,
    ]


def _slower(line: Record) -> Record:
    if not isinstance(line, Run) or line.cell.drafter is None:
        return line
    return replace(line, answers=[replace(a, seconds=5 * a.seconds) for a in line.answers])


def test_pictures_are_written_and_alike_each_time(results: Results, tmp_path: Path) -> None:
    written = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        drawn = [by_draft_length(results, Setting(1, 0.0)), predictions(results)]
        paths = save_plots([plot for plot in drawn if plot is not None], folder)
        assert [path.suffix for path in paths] == [".svg", ".png"] * 2
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    for path in paths[::2]:
        texts = [each.text or "" for each in ElementTree.parse(path).iter()]
        assert any("Not clear" in text or "predictions" in text for text in texts), texts
    for path in paths[1::2]:
        pixels = imread(path)[::7, ::7, :3].reshape(-1, 3)
        assert len(unique((255 * pixels).round(), axis=0)) > 10


@pytest.mark.parametrize("width", [2.2, 3.3, 7.0])
def test_a_picture_has_the_width_that_a_paper_gives_it(results: Results, width: float) -> None:
    """And its title stays within it, and its letters shrink with it."""
    with on(Paper(width=width, palette="grey")):
        plot = by_draft_length(results, Setting(1, 0.0))
        assert plot is not None
        before = plot.figure.get_size_inches()
        with titled(plot.figure, plot.title + " and so on, for as long as a title may be"):
            (title,) = plot.figure.texts
            box = title.get_window_extent()
            assert 0 <= box.x0 <= box.x1 <= plot.figure.bbox.width
            assert plot.figure.get_size_inches()[0] == pytest.approx(width)
    assert before[1] / before[0] == pytest.approx(5.9 / 5.4)
    colours = {line.get_color() for line in plot.figure.axes[0].lines}
    assert colours <= {*PALETTES["grey"], GREY}
    label = plot.figure.axes[0].texts[0]
    assert label.get_fontsize() == pytest.approx(10.5 * width / 5.4)


def test_a_paper_gives_the_height_and_the_title_too(results: Results) -> None:
    with on(Paper(width=3.0, height=2.0, title="")):
        plot = by_draft_length(results, Setting(1, 0.0))
        assert plot is not None
        with titled(plot.figure, plot.title):
            assert tuple(plot.figure.get_size_inches()) == pytest.approx((3.0, 2.0))
            assert not plot.figure.texts
    with on(Paper(title="Mine")), titled(plot.figure, plot.title):
        assert [text.get_text() for text in plot.figure.texts] == ["Mine"]


def test_intervals_stand_apart_at_their_points(results: Results) -> None:
    plot = by_draft_length(results, Setting(1, 0.0))
    assert plot is not None
    top = plot.figure.axes[0]
    uprights = [
        line for line in top.lines if len({*line.get_xdata()}) == 1 != len(line.get_xdata())
    ]
    places = [float(line.get_xdata()[0]) for line in uprights]
    assert len(places) == len({*places}) >= 9  # three drafters at K = 1, 3 and auto
    assert not top.collections  # no bands, which hide one another


def test_no_panel_is_empty() -> None:
    """A peer does not tell what it drafted, and a drafter may have had nothing to say."""
    options: dict[str, Any] = {**SMALL, "drafters": ("ngram",), "peer": False}

    def silent(line: Record) -> Record:
        if not isinstance(line, Run) or line.cell.drafter is None:
            return line
        none = {"reached_by_position": [], "accepted_by_position": [], "drafted": 0, "accepted": 0}
        none |= {"drafted_by_round": [0], "accepted_by_round": [0]}
        return replace(line, answers=[replace(answer, **none) for answer in line.answers])

    results = Results(as_records(map(silent, sweep(**options, repeats=1))))
    plot = by_draft_length(results, Setting(1, 0.0))
    assert plot is not None
    assert len(plot.figure.axes) == 1
    assert over_time(results, Setting(1, 0.0)) is None
    assert by_position(results, Setting(1, 0.0)) is None


def test_the_shell_draws_for_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, sweep(**{**SMALL, "batches": (1,)}, repeats=1))  # type: ignore[arg-type]
    words = ["plot", str(tmp_path), "--only", "by_draft_length", "--format", "pdf,svg"]
    assert main([*words, "--size", "3.3x4", "--title", "", "--palette", "tol"]) == 0
    found = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert found == [f"by_draft_length-batch-1-temperature-0.{each}" for each in ("pdf", "svg")]
    assert not (tmp_path / "report.html").exists()
    first = tmp_path / "plots" / found[0]
    assert re.search(rb"/MediaBox \[ ?0 0 237\.6 288 ?\]", first.read_bytes())  # 72 to the inch
    for wrong in (["--format", "gif"], ["--size", "big"], ["--size", "0.1"], ["--only", "none"]):
        assert main([*words, *wrong]) == 2
        told = capsys.readouterr().err
        assert re.search(rf"Received '?{wrong[1]}'?\. (Use|Write|This)", told), told


def test_names_at_line_ends_never_overlap_and_keep_their_order() -> None:
    noise = random.Random(0)
    for _ in range(200):
        count = noise.randint(1, 7)
        middles = sorted(noise.uniform(0, 100) for _ in range(count))
        sizes = [noise.choice([8.0, 14.0]) for _ in range(count)]
        placed = spread(middles, sizes, 0, 100)
        for (below, above), pair in zip(pairwise(placed), pairwise(sizes), strict=True):
            assert above - below >= sum(pair) / 2 - 1e-9
        assert placed[0] - sizes[0] / 2 >= -1e-9
        assert placed[-1] + sizes[-1] / 2 <= 100 + 1e-9
    assert spread([20, 50, 90], [5, 5, 5], 0, 100) == [20, 50, 90]  # far apart: left alone


@pytest.mark.parametrize(
    ("lengths", "peer"), [((2,), False), (("auto",), False), ((1, 2), True)], ids=str
)
def test_small_sweeps_draw_what_they_can(lengths: tuple[int | str, ...], peer: bool) -> None:
    lines = sweep(drafters=("ngram",), lengths=lengths, batches=(1,), temperatures=(0.0,),
                  per_group=1, repeats=1, peer=peer)  # fmt: skip
    plots = list(draw(Results(as_records(lines))))
    assert "by_draft_length" in {plot.kind for plot in plots}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_an_unfinished_sweep_is_drawn_too(share: float) -> None:
    lines = sweep(lengths=(2, "auto"), batches=(2, 1), temperatures=(0.0,), per_group=1, repeats=1)
    records = as_records(lines[: round(share * len(lines))])
    assert list(draw(Results(records)))


def test_answers_of_one_round_have_no_speed_but_are_drawn() -> None:
    def cut(line: Record) -> Record:
        if not isinstance(line, Run):
            return line
        brief = [
            replace(a, new_tokens=a.first_tokens, seconds=a.first_seconds) for a in line.answers
        ]
        return replace(line, answers=brief)

    lines = sweep(lengths=(2, "auto"), batches=(1,), temperatures=(0.0,), per_group=1, repeats=1)
    results = Results(as_records(map(cut, lines)))
    assert {plot.kind for plot in draw(results)} >= {"by_draft_length", "over_time"}
    assert headline(results) == "Nothing to compare with plain decoding yet."


def test_plain_decoding_alone_has_its_time_split() -> None:
    lines = sweep(drafters=(), batches=(1,), temperatures=(0.0,), per_group=1, peer=False)
    assert [plot.kind for plot in draw(Results(as_records(lines)))] == ["time_split"]


def test_several_targets_do_not_compare() -> None:
    run = next(line for line in sweep(**SMALL, repeats=1) if isinstance(line, Run))  # type: ignore[arg-type]
    other = Run(Cell("another", None, 0, None, 1, 0.0, "match"), 0, 1.0, run.answers)
    with pytest.raises(InputError, match="several targets"):
        Results(as_records([run, other]))


@pytest.mark.parametrize("fault", ["missing", "empty", "unfinished", "corrupt", "file in the way"])
def test_bad_input_is_named(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, options = tmp_path / "sweep", []
    lines = sweep(drafters=(), batches=(1,), temperatures=(0.0,), per_group=1, repeats=1)
    expected = "no sweep in that folder"
    if fault == "empty":
        folder.mkdir()
    if fault == "unfinished":
        write(folder, lines[:1])
        expected = "nothing to show yet"
    if fault == "corrupt":
        write(folder, lines)
        text = (folder / FILE).read_text().splitlines(keepends=True)
        text[2] = text[2][:40] + "\n"
        (folder / FILE).write_text("".join(text))
        expected = r"Line 3 of .* is corrupt"
    if fault == "file in the way":
        write(folder, lines)
        (tmp_path / "taken").write_text("")
        options, expected = ["--out", str(tmp_path / "taken")], "cannot be written"
    assert main(["plot", str(folder), *options]) == 2
    assert re.search(expected, capsys.readouterr().err)


def test_a_corrupt_line_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = sweep(drafters=(), batches=(1,), temperatures=(0.0,), per_group=1, repeats=1)
    folder = write(tmp_path, lines)
    with (folder / FILE).open("a") as file:
        file.write("{nonsense\n")
    assert main(["plot", str(folder), "--skip-corrupt"]) == 0
    assert f"line {len(lines) + 1} is corrupt" in capsys.readouterr().err
    assert "corrupt lines left out" in (folder / "report.html").read_text()


def test_missing_matplotlib_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, sweep(drafters=(), batches=(1,), per_group=1, repeats=1))
    for module in [name for name in sys.modules if name.startswith("forerun.measure.plots")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "forerun.measure.report", raising=False)
    monkeypatch.delitem(sys.modules, "forerun.base.drawing", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(folder)]) == 2
    assert 'pip install "forerun[plot]"' in capsys.readouterr().err


def test_tokens_are_laid_out_in_order_and_within_the_page(results: Results) -> None:
    (sample,) = results.records.samples
    plot = tokens(results)
    assert plot is not None
    accepted = sum(token.fate == "accepted" for token in sample.tokens)
    assert plot.title.startswith(f"{accepted} of {len(sample.tokens)} tokens")
    placed = layout(sample.tokens)
    assert "".join(text for _, _, text, _ in placed).replace(" ", "") == "".join(
        token.text for token in sample.tokens
    ).replace(" ", "").replace("\n", "")
    for (row, column, text, _), (next_row, next_column, _, _) in pairwise(placed):
        assert column + len(text) <= COLUMNS
        assert (next_row, next_column) >= (row, column + len(text)) or next_row > row
    endless = layout([Token("$\\frac$ word", "bonus", 0.5)] * 1000)
    assert endless[-1][0] == MAX_LINES - 1
