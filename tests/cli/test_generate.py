"""`forerun generate` end to end on a tiny model: piped, on a terminal, broken off, and misused."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import forerun as fr
from forerun.cli import main
from forerun.cli.generate import in_order
from forerun.cli.screen import COLOURS, painted
from forerun.engine.results import Piece

PROMPT = "the cat sat on the mat, the cat sat on"
CHAT = [{"role": "user", "content": PROMPT}]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_pipe_gets_the_text_and_nothing_else(tiny_model: str, capsys: Capture) -> None:
    options = ["--target", tiny_model, "--max-tokens", "24"]
    assert main(["generate", PROMPT, *options]) == 0
    shown = capsys.readouterr()
    expected = fr.generate(fr.load(tiny_model), CHAT, drafter=None, max_new_tokens=24)
    assert shown.out == expected.text + "\n"
    assert shown.err == ""


def test_the_seed_decides_not_the_drafter(tiny_model: str, capsys: Capture) -> None:
    sampled = ["--target", tiny_model, "--temperature", "0.9", "--top-p", "0.9", "--json"]
    found: dict[str, Any] = {}
    for drafter in ("none", "ngram", tiny_model):
        assert main(["generate", PROMPT, *sampled, "--seed", "7", "--drafter", drafter]) == 0
        found[drafter] = json.loads(capsys.readouterr().out)
    assert len({tuple(each["tokens"]) for each in found.values()}) == 1
    assert {each["seed"] for each in found.values()} == {7}
    assert found["none"]["stats"]["drafted"] == 0
    assert found["ngram"]["stats"]["accepted"] < found[tiny_model]["stats"]["accepted"]
    assert main(["generate", PROMPT, *sampled, "--seed", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] != found["none"]["tokens"]


def test_a_pipe_gets_each_part_as_it_comes(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text is flushed round by round, not at the end; a buffer between would hide that."""

    class Pipe(io.StringIO):
        flushed: ClassVar[list[str]] = []

        def flush(self) -> None:
            self.flushed.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Pipe())
    options = ["--target", tiny_model, "--max-tokens", "24", "--drafter", "none"]
    assert main(["generate", PROMPT, *options]) == 0
    assert len(set(Pipe.flushed)) > 12


def test_json_lines_come_as_answers_end() -> None:
    told: list[int] = []
    ends = [(1, None), (1, "stop"), (2, "stop"), (0, None), (0, "length"), (3, "stop")]

    def pieces() -> Iterator[Piece]:
        for index, reason in ends:
            assert told == ([] if index != 3 else [0, 1, 2])
            yield Piece([], [], [], index, 0, reason)

    for index in in_order(pieces(), 4):
        told.append(index)  # noqa: PERF402 (the generator looks at it)
    assert told == [0, 1, 2, 3]


def test_json_holds_what_a_program_needs(tiny_model: str, capsys: Capture) -> None:
    options = ["--target", tiny_model, "--max-tokens", "9", "--json"]
    assert main(["generate", PROMPT, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    answer = {"text", "tokens", "fates", "finish_reason", "seed", "stats"}
    assert set(found) == {"index", "sample", *answer}
    assert len(found["tokens"]) == len(found["fates"]) == found["stats"]["emitted"] == 9
    assert found["finish_reason"] == "length"


def test_options_reach_the_engine(tiny_model: str, capsys: Capture) -> None:
    options = ["--target", tiny_model, "--max-tokens", "40"]
    assert main(["generate", PROMPT, *options]) == 0
    whole = capsys.readouterr().out.rstrip("\n")
    stop = whole[10:12]
    assert main(["generate", PROMPT, *options, "--stop", "never this", "--stop", stop]) == 0
    assert capsys.readouterr().out.rstrip("\n") == whole[: whole.index(stop)]
    assert main(["generate", PROMPT, *options, "--repetition-penalty", "5"]) == 0
    assert capsys.readouterr().out.rstrip("\n") != whole
    assert main(["generate", PROMPT, *options, "--draft-length", "0", "--dtype", "float64"]) == 0


def test_chat_raw_and_system_prompts(tiny_model: str, capsys: Capture) -> None:
    model = fr.load(tiny_model)
    system = [{"role": "system", "content": "mat"}, *CHAT]
    options = ["--target", tiny_model, "--max-tokens", "20"]
    for flags, prompt in ((["--raw"], PROMPT), (["--system", "mat"], system), ([], CHAT)):
        assert main(["generate", PROMPT, *options, *flags]) == 0
        expected = fr.generate(model, prompt, drafter=None, max_new_tokens=20).text
        assert capsys.readouterr().out == expected + "\n"


def test_a_model_without_a_template_continues_the_text(
    tiny_model: str, tmp_path: Path, capsys: Capture
) -> None:
    model = fr.load(tiny_model)
    model.tokenizer.chat_template = None
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    assert main(["generate", PROMPT, "--target", str(tmp_path), "--max-tokens", "20"]) == 0
    expected = fr.generate(model, PROMPT, drafter=None, max_new_tokens=20).text
    assert capsys.readouterr().out == expected + "\n"
    assert main(["generate", PROMPT, "--target", str(tmp_path), "--system", "mat"]) == 2
    assert "needs a chat template" in capsys.readouterr().err


def test_prompts_come_from_files_and_pipes(
    tiny_model: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT + "\n", encoding="utf-8")
    options = ["--target", tiny_model, "--max-tokens", "20"]
    answers = []
    for arguments, piped in (
        ([PROMPT], None),
        (["--file", str(file)], None),
        ([], PROMPT + "\n"),
        (["--file", "-"], PROMPT),
        (["-"], PROMPT),
    ):
        if piped is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
        assert main(["generate", *arguments, *options]) == 0
        answers.append(capsys.readouterr().out)
    assert len(set(answers)) == 1
    assert main(["generate", "the", "--file", str(file), "--raw", *options]) == 0
    expected = fr.generate(
        fr.load(tiny_model), f"the\n\n{PROMPT}", drafter=None, max_new_tokens=20
    ).text
    assert capsys.readouterr().out == expected + "\n"


def test_a_text_that_waits_at_standard_input_is_not_passed_over_in_silence(
    tiny_model: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.txt").write_text("some report")
    (tmp_path / "empty.txt").write_text("")
    reader, writer = os.pipe()
    os.write(writer, b"some diff")
    command = ["generate", PROMPT, "--target", tiny_model, "--max-tokens", "2"]
    with (tmp_path / "report.txt").open() as file, os.fdopen(reader) as pipe:
        for given in (file, pipe):
            monkeypatch.setattr(sys, "stdin", given)
            assert main(command) == 0
            assert "standard input is not read; --file - puts it" in capsys.readouterr().err
            assert main([*command, "--file", "-"]) == 0
            os.close(writer) if given is file else None
            assert capsys.readouterr().err == ""
    with (tmp_path / "empty.txt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert main(command) == 0
    assert capsys.readouterr().err == ""


def test_several_prompts_are_answered_in_order(
    tiny_model: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "prompts.txt"
    prompts = [PROMPT, "what is", "Paris"]
    rows = [json.dumps({"prompt": prompts[0]}), "", prompts[1], json.dumps({"turns": prompts[2:]})]
    file.write_text("\n".join(rows), encoding="utf-8")
    options = ["--prompts", str(file), "--target", tiny_model, "--max-tokens", "12", "--raw"]
    assert main(["generate", *options, "--stats"]) == 0
    shown = capsys.readouterr()
    texts = [
        each.text
        for each in fr.generate(fr.load(tiny_model), prompts, drafter=None, max_new_tokens=12)
    ]
    assert shown.out == "".join(f"{text}\n" for text in texts)
    titles = [
        line for line in shown.err.splitlines() if line in (f"[2/3] {prompts[1]}", "[3/3] Paris")
    ]
    assert len(titles) == 2
    assert shown.err.count("tokens in") == 3
    assert main(["generate", *options, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == texts
    assert [(json.loads(line)["index"], json.loads(line)["sample"]) for line in lines] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]


def test_a_terminal_gets_colours_and_a_legend(
    tiny_model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    command = ["generate", PROMPT, "--target", tiny_model, "--drafter", tiny_model]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert COLOURS[fr.Fate.ACCEPTED] in shown.out
    assert "accepted from the draft" in shown.err
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(command) == 0
    plain = capsys.readouterr()
    assert "\x1b" not in plain.out
    assert re.sub(r"\x1b\[[\d;]*m", "", shown.out) == plain.out


def test_painted_text_keeps_its_spaces_and_cannot_command_the_terminal() -> None:
    assert painted(" word\n", fr.Fate.CORRECTION) == " \x1b[4;38;5;172mword\x1b[0m\n"
    assert painted("word", fr.Fate.BONUS) == "word"
    assert painted("\x1b[2J", fr.Fate.BONUS) == "␛[2J"


def test_statistics_go_to_stderr(tiny_model: str, capsys: Capture) -> None:
    command = ["generate", PROMPT, "--target", tiny_model, "--max-tokens", "30", "--stats"]
    command += ["--draft-length", "5"]
    assert main([*command, "--drafter", tiny_model]) == 0
    err = capsys.readouterr().err
    assert re.search(
        r"30 tokens in 5 rounds, 6\.00 per round; .* tokens/s; finish reason: length", err
    )
    assert "draft: 25 of 25 tokens accepted (100%); by position, once reached: 100% 100%" in err
    assert re.search(r"time: draft .*%, score .*%, verify .*%, commit .*%", err)
    assert main([*command, "--drafter", "none"]) == 0
    assert "draft:" not in capsys.readouterr().err


def test_statistics_say_which_pass_ran(tiny_model: str, capsys: Capture) -> None:
    command = ["generate", PROMPT, "--target", tiny_model, "--max-tokens", "3"]
    assert main([*command, "--stats"]) == 0
    shown = capsys.readouterr().err
    assert f"target: LeanModel({tiny_model!r}, llama of " in shown
    assert "k parameters, lean CPU pass in float32, float32 weights)\n" in shown
    assert main([*command, "--stats", "--dtype", "bfloat16"]) == 0
    assert "lean CPU pass in float32, bfloat16 weights)\n" in capsys.readouterr().err
    with pytest.warns(RuntimeWarning, match="runs on transformers"):
        assert main([*command, "--stats", "--dtype", "float64"]) == 0
    err = capsys.readouterr().err
    assert f"target: HuggingFaceModel({tiny_model!r}, llama of 39.7k parameters, tr" in err
    assert "transformers, float64, cpu); not the lean CPU pass: its weights are not" in err
    assert main(command) == 0
    assert "target:" not in capsys.readouterr().err


def test_breaking_off_keeps_what_is_there(
    tiny_model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fr.load(tiny_model)
    whole = fr.generate(model, CHAT, drafter=None, max_new_tokens=60).text
    score, calls = model.score, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(model, "score", interrupted)
    monkeypatch.setattr("forerun.cli.generate.load_target", lambda *_: model)
    command = ["generate", PROMPT, "--max-tokens", "60", "--stats", "--drafter", "none"]
    assert main(command) == 130
    shown = capsys.readouterr()
    assert 0 < len(shown.out) < len(whole)
    assert whole.startswith(shown.out.rstrip("\n"))
    assert "7 tokens in 7 rounds" in shown.err
    assert "finish reason: cancelled" in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature is out of range. Received -1.0."),
        (["--top-p", "1.5"], "top_p is out of range"),
        (["--rule", "luck"], "There is no rule of that name. Received 'luck'."),
        (["--draft-length", "-1"], "--draft-length is too small"),
        (["--max-tokens", "0"], "--max-tokens is too small. Received 0. Use 1 or more."),
        (["--stop", ""], "A stop string is empty"),
        (["--raw", "--system", "x"], "Raw text has no system message"),
        (["--file", "missing.txt"], "A file cannot be read (No such file or directory)"),
        (["--prompts", "missing.txt"], "--prompts is a list of its own"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    arguments: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.cli.generate.load_target", None)
    assert main(["generate", "hello", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_prompts_that_are_none(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.cli.generate.load_target", None)
    assert main(["generate"]) == 2
    assert "There is no prompt. Received none." in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert main(["generate"]) == 2
    assert "Received an empty one" in capsys.readouterr().err
    file = tmp_path / "list"
    for content, message in (
        (b"\n\n", "The list holds no prompt"),
        (b'fine\n{"question": "?"}\n', "Line 2 of"),
        (b'{"prompt": 3}', "Line 1 of"),
        (b'{"prompt": ', "Line 1 of"),
        (b"\xff\xfe", "it is not UTF-8 text"),
    ):
        file.write_bytes(content)
        assert main(["generate", "--prompts", str(file)]) == 2
        assert message in capsys.readouterr().err


def test_a_lossy_rule_is_announced(tiny_model: str, capsys: Capture) -> None:
    assert main(["generate", PROMPT, "--target", tiny_model, "--rule", "typical"]) == 0
    assert "note: the rule typical is lossy" in capsys.readouterr().err


def test_devices_and_models_that_are_not_there(tiny_model: str, capsys: Capture) -> None:
    assert main(["generate", PROMPT, "--target", tiny_model, "--device", "abacus"]) == 2
    assert "There is no such kind of device. Received 'abacus'. Use cpu" in capsys.readouterr().err


def test_a_failing_drafter_is_noted(
    tiny_model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of ideas")

    monkeypatch.setattr(fr.drafters.NGram, "propose", fail)
    assert main(["generate", PROMPT, "--target", tiny_model, "--drafter", "ngram"]) == 0
    assert "note: ngram failed and was done without: RuntimeError: out" in capsys.readouterr().err


def test_help_has_examples(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["generate", "--help"])
    out = capsys.readouterr().out
    assert 'forerun generate "What is the capital of France?"' in out
    assert max(map(len, out.splitlines())) <= 100


def test_drafters_by_name_and_trees(tiny_model: str, capsys: Capture) -> None:
    """Under match every one of them gives the text of plain decoding."""
    options = ["--target", tiny_model, "--max-tokens", "24", "--temperature", "0.8"]
    options += ["--seed", "5", "--json"]
    texts = set()
    for drafter in (
        "none",
        "suffix",
        "early-exit:1",
        "early-exit",
        "quantized:int8",
        "ngram+suffix",
    ):
        for tree in ([], ["--tree", "8"]):
            assert main(["generate", PROMPT, *options, "--drafter", drafter, *tree]) == 0
            shown = capsys.readouterr()
            texts.add(json.loads(shown.out)["text"])
            assert "failed" not in shown.err
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--drafter", "early-exit:x"], "early-exit needs a number"),
        (["--drafter", "quantized:int3"], "Unknown quantisation"),
        (["--drafter", "suffix+"], "nothing to mix"),
        (["--tree", "0"], "--tree is too small"),
        (["--tree", "8", "--rule", "block"], "This rule judges chains only"),
        (["--tree", "8", "--rule", "traversal"], "cannot judge a tree of any shape"),
    ],
)
def test_drafters_and_trees_that_cannot_be(
    tiny_model: str, capsys: Capture, flags: list[str], message: str
) -> None:
    assert main(["generate", PROMPT, "--target", tiny_model, *flags]) == 2
    assert message in capsys.readouterr().err
