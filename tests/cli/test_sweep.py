"""`forerun sweep`: a folder of records, and every mistake told before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import forerun as fr
from forerun.base.errors import InputError
from forerun.cli import main
from forerun.cli.lists import counts, numbers
from forerun.cli.sweep import draft_lengths
from forerun.measure.log import Log
from forerun.measure.records import FILE, read_records

SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["the cat sat", "and then?"]},
    {"question_id": 82, "category": "qa", "turns": ["what is the capital of France?"]},
    {"question_id": 83, "category": "qa", "turns": ["the mat sat"]},
]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "spec_bench.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in SPEC_BENCH))
    return str(path)


def test_a_sweep_by_task_group(
    tiny_model: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "sweep"
    words = ["sweep", tiny_model, "--drafter", "ngram", "--draft-length", "0..2", "--batch", "1,2"]
    options = ["--prompts", prompts, "--per-group", "2", "--max-tokens", "8", "--no-predict"]
    assert main([*words, *options, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    found = read_records(out)
    assert [header.prompts for header in found.headers] == [["81", "82", "83"]]
    assert len(found.runs) == 3 * (3 + 2)
    assert {a.group for run in found.runs for a in run.answers} == {"chat", "qa"}
    # lengths at batches; in groups; in the advice for batches; in the replay
    assert shown.count("ngram") == 2 * 2 + 2 + 2 + 1
    assert "Not clear: fewer than 12 prompts were measured." in shown
    assert "x [" not in shown  # the one interval is the verdict's
    assert "\nreplay: tokens per round within " in shown
    assert f"forerun plot {out}" in shown
    assert main([*words, *options, "--out", str(out)]) == 0
    assert read_records(out).runs == found.runs


def test_prompts_are_read_once_where_the_target_can(
    tiny_model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba")
    words = ["sweep", tiny_model, "--drafter", "ngram", "--draft-length", "0,2,auto"]
    words += ["--prompts", prompts, "--max-tokens", "4", "--no-predict", "--read-prompts-once"]
    for lean, code in ((True, 0), (False, 2)):
        model = fr.load(tiny_model, lean=lean)
        monkeypatch.setattr("forerun.cli.sweep.load_target", lambda *args, own=model: own)
        assert main([*words, "--out", str(tmp_path / str(lean))]) == code
    shown = capsys.readouterr()
    assert "\nauto: ngram, auto K, batch 1, greedy: " in shown.out
    assert "Leave out --read-prompts-once" in shown.err
    assert not all(run.read_prompts for run in read_records(tmp_path / "True").runs)
    assert read_records(tmp_path / "False").runs == []


def test_an_interruption_says_what_is_saved(
    tiny_model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["sweep", tiny_model, "--drafter", "ngram", "--draft-length", "0,2", "--prompts"]
    words += [prompts, "--max-tokens", "4", "--no-predict", "--out", str(tmp_path / "out")]
    add, num_added = Log.add, 0

    def interrupted(self: Log, record: Any) -> None:
        nonlocal num_added
        num_added += 1
        if num_added == 4:  # a header and two runs
            raise KeyboardInterrupt
        add(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(Log, "add", interrupted)
        assert main(words) == 130
    shown = capsys.readouterr()
    assert shown.err.endswith("\n2 runs saved; the same command goes on from there\n")
    assert "run 1 of 6: " in shown.err
    assert main(words) == 0
    assert "run 3 of 6: " in capsys.readouterr().err
    assert len(read_records(tmp_path / "out").runs) == 6


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--max-tokens", "5", "--max-tokens). Received 5 instead of 4"),
        ("--seed", "1", "another --seed. Received 1 instead of 0"),
        ("--per-group", "1", "--per-group). Received 2 prompts with the digest "),
    ],
)
def test_going_on_with_another_option_names_it(
    option: str,
    value: str,
    said: str,
    tiny_model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sweep", tiny_model, "--draft-length", "0", "--prompts", prompts, "--no-predict"]
    words += ["--drafter", "ngram", "--out", str(tmp_path / "out")]
    assert main([*words, "--max-tokens", "4"]) == 0
    capsys.readouterr()
    assert main([*words, "--max-tokens", "4", option, value]) == 2
    assert said in capsys.readouterr().err


def test_ranges_and_lists() -> None:
    assert draft_lengths("0..3,8,auto") == [0, 1, 2, 3, 8, "auto"]
    assert draft_lengths("auto") == ["auto"]
    assert counts("--batch", "1,4,8") == [1, 4, 8]
    assert numbers("--temperature", "0,0.8") == [0.0, 0.8]
    with pytest.raises(InputError, match=r"counts backwards.*Did you mean 2..8"):
        draft_lengths("8..2")


def corrupt(out: Path) -> None:
    out.mkdir()
    (out / FILE).write_text('{"kind": "run"}\n')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draft-length", "8..0"], "--draft-length counts backwards"),
        (["--draft-length", "some"], "--draft-length is not a range"),
        (["--batch", "0"], "--batch is too small"),
        (["--batch", "1,9"], "larger than the prompt set"),
        (["--temperature", "-1"], "temperature is out of range"),
        (["--temperature", "warm"], "--temperature is not a list of numbers"),
        (["--rule", "guess"], "guess"),
        (["--repeats", "0"], "The repeats are too few"),
        (["--repeats", "2,1"], "The repeats do not fit the batches"),
        (["--repeats", "x"], "--repeats is not a range"),
        (["--tree", "0"], "--tree is too small"),
        (["--per-group", "0"], "cannot hold so few"),
        (["--max-tokens", "0"], "--max-tokens is too small"),
        (["--drafter", "none"], "drafts nothing"),
        (["--prompts", "{empty}"], "holds no prompt"),
        (["--prompts", "{csv}"], "Line 1 of .* holds no prompt"),
        (["--prompts", "{missing}"], "cannot be read"),
        (["--out", "{file}/below"], "cannot be written"),
        (["--out", "{corrupt}"], r"Line 1 of .* is corrupt"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    words: list[str],
    said: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("forerun.cli.sweep.load_target", refuse)
    monkeypatch.setattr("forerun.cli.sweep.load_drafter", refuse)
    places = {name: tmp_path / name for name in ("empty", "csv", "missing", "file", "corrupt")}
    places["empty"].write_text("\n\n")
    places["csv"].write_text("id,prompt\n1,hello\n")
    places["file"].write_text("")
    corrupt(places["corrupt"])
    usual = ["sweep", "--prompts", prompts, "--out", str(tmp_path / "out")]
    assert main([*usual, *(word.format(**places) for word in words)]) == 2
    assert _says(capsys.readouterr().err, said)


def test_a_corrupt_line_is_skipped_on_request(
    tiny_model: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    corrupt(out)
    words = ["sweep", tiny_model, "--draft-length", "0", "--prompts", prompts, "--out", str(out)]
    assert main([*words, "--max-tokens", "4", "--no-predict", "--skip-corrupt"]) == 0
    assert "line 1 is corrupt and skipped" in capsys.readouterr().err
    assert len(read_records(out, skip_corrupt=True).runs) == 3


def _says(text: str, pattern: str) -> bool:
    import re

    return re.search(pattern, text) is not None and text.count("\n") == 1
