"""`forerun simulate` end to end, without a terminal, with one, and with bad arguments."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from forerun.base.errors import InputError, MissingExtraError
from forerun.cli import simulate
from forerun.cli.commands import make_parser


def run(*arguments: str) -> int:
    return simulate.run(make_parser().parse_args(["simulate", *arguments]))


def test_no_flags_give_tables_a_curve_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out = capsys.readouterr().out
    best = next(line for line in out.splitlines() if "◆ best" in line)
    assert best.split()[0] == "8"
    assert "speed-up by draft length K" in out
    assert "as the batch grows" in out
    assert out.rstrip().splitlines()[-1].startswith("Draft 8 at batch 1: 3.1")
    assert "\x1b[" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_defaults_are_labelled_as_a_datacentre_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    words = {
        (): "On paper, and not of this machine, which forerun plan measures.",
        ("--bandwidth", "0.1"): "what you did not give is a datacentre GPU",
    }
    for flags, expected in words.items():
        run(*flags, "--batch", "1", "--rounds", "50")
        out = capsys.readouterr().out
        assert expected in out
        assert "a datacentre GPU: an 8B model" in out
    whole = ("--weights-gb", "1", "--bandwidth", "1", "--tflops", "1", "--kv-kib", "1")
    for flags in (("--target-cost", "1"), (*whole, "--context", "1", "--batch", "1")):
        run(*flags, "--rounds", "50")
        assert "datacentre" not in capsys.readouterr().out


def test_colour_only_on_a_terminal_that_wants_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    run()
    assert "\x1b[1;32m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    run()
    assert "\x1b[" not in capsys.readouterr().out


def test_json_is_one_line_and_repeats_with_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--json", "--draft-length", "0..2,5", "--batch", "1,8", "--spread", "0.1")
    run(*flags)
    first = capsys.readouterr().out
    run(*flags)
    assert capsys.readouterr().out == first
    data = json.loads(first)
    assert [b["batch"] for b in data["batches"]] == [1, 8]
    runs = data["batches"][0]["runs"]
    assert [r["draft_length"] for r in runs] == [0, 1, 2, 5]
    gain = runs[3]["speedup"]
    assert gain["low"] < gain["mean"] < gain["high"]
    assert data["unit_of_time"] == "second"


def test_listed_rates_and_costs_bound_the_default_range(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("--json", "--acceptance", "0.9,0.8,0.7", "--target-cost", "1,1.1,1.2,1.3,1.4")
    data = json.loads(capsys.readouterr().out)
    assert [r["draft_length"] for r in data["batches"][0]["runs"]] == [0, 1, 2, 3]
    assert data["unit_of_time"] == "target pass over one token"


def test_relative_costs_are_reported_in_passes(capsys: pytest.CaptureFixture[str]) -> None:
    run("--target-cost", "1.5", "--draft-length", "2")
    out = capsys.readouterr().out
    assert "passes/token" in out
    assert "tokens/s" not in out


def test_an_ascii_pipe_gets_replacements_instead_of_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", pipe)
    run()
    pipe.flush()
    assert b"Draft 8 at batch 1" in pipe.buffer.getvalue()


def test_help_shows_examples_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    help_text = capsys.readouterr().out
    examples = [
        line.split("|")[0].split()[2:]
        for line in help_text.splitlines()
        if line.startswith("  forerun simulate") and "--plot" not in line
    ]
    assert len(examples) >= 5
    for arguments in examples:
        assert run(*arguments) == 0


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("picture.svg", ()),
        pytest.param("picture.PNG", (), marks=pytest.mark.slow),
        pytest.param("picture.PNG", ("--target-cost", "1,2,2.1"), marks=pytest.mark.slow),
        ("picture.PNG", ("--draft-length", "0")),
    ],
)
def test_plot_writes_a_picture(tmp_path: Path, name: str, flags: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    run(*flags, "--rounds", "200", "--plot", str(path))
    head = path.read_bytes()[:600]
    assert head.startswith(b"\x89PNG") or b"<svg" in head
    if path.suffix == ".svg":  # the same scan, the same bytes
        before = path.read_bytes()
        run(*flags, "--rounds", "200", "--plot", str(path))
        assert path.read_bytes() == before


def test_missing_matplotlib_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("forerun.forecast.picture", "forerun.base.drawing"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'pip install "forerun\[plot\]"'):
        run("--plot", str(tmp_path / "a.svg"))
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draft-length", "8..0"), "0..8?"),
        (("--draft-length", "-1"), "below zero"),
        (("--draft-length", "1,,2"), "not a range"),
        (("--draft-length", "two"), "not a range"),
        (("--draft-length", ""), "not a range"),
        (("--batch", "0"), "batch is too small"),
        (("--batch", "4..1"), "1..4?"),
        (("--acceptance", "high"), "--acceptance is not a list of numbers"),
        (("--acceptance", "80"), "80% as 0.8"),
        (("--acceptance", "0.8,0.7", "--draft-length", "3"), "at most 2"),
        (("--acceptance", "0.8,0.7", "--spread", "0.1"), "leave spread at 0"),
        (("--draft-cost", "-0.1"), "draft_cost"),
        (("--target-cost", "2,3"), "must be 1 for one token"),
        (("--target-cost", "1,1.1", "--batch", "1,2"), "--batch"),
        (("--target-cost", "1,1.1", "--weights-gb", "8"), "--weights-gb"),
        (("--bandwidth", "0"), "--bandwidth"),
        (("--rounds", "0"), "rounds is too small"),
        (("--plot", "picture.gif"), "in .svg, .png, .pdf"),
        (("--plot", "no/such/folder/picture.svg"), "existing folder"),
    ],
)
def test_bad_arguments_are_refused_before_any_output(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError) as caught:
        run(*arguments)
    assert message in str(caught.value)
    assert capsys.readouterr().out == ""
