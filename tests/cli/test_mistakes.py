"""What is typed wrongly at first, and that the answer says what to type."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun import rules
from forerun.base.errors import InputError
from forerun.cli import main
from forerun.cli.commands import make_parser
from forerun.cli.flags import shared
from forerun.cli.lists import tree
from forerun.cli.loading import settled
from forerun.cli.prompts import as_text
from forerun.drafters import NGram, Suffix
from forerun.drafters.registry import FACTORIES
from forerun.engine.pacing import SLOWDOWN
from forerun.loading.load import load
from forerun.models import TableModel
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree

PROMPT = "the cat sat on the mat, the cat sat on"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--drafter", ""], "No drafter is named"),
        (["--drafter", "sufix"], "no drafter of that name, and no model. Received 'sufix'. Use"),
        (["--drafter", "sufix"], "Did you mean suffix?"),
        (["--drafter", "heads:nofolder"], "no such folder"),
        (
            ["--drafter", "suffix+eagle:./head"],
            "Received 'eagle:./head'. Before the colon use ngram",
        ),
        (["--drafter", "eagle:./head"], "Did you mean eagle3?"),
        (["--drafter", "modell:./head"], "Did you mean model?"),
        (["--drafter", "ngram:3"], "ngram takes nothing after a colon"),
        (["--tree", "x"], "--tree is no tree. Received 'x'. Write a number of nodes, 16, or"),
        (["--drafter", "through-text"], "through-text needs a model. Received nothing. Name"),
        (["--tree", "2,"], "--tree is no tree"),
        (["--tree", "2,0"], "--tree is too small. Received 2,0"),
        (["--tree", "0"], "--tree is too small"),
    ],
)
def test_told_before_a_model_is_loaded(
    words: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("generate", "doctor", "loading"):
        monkeypatch.setattr(f"forerun.cli.{place}.load_target", None)
    assert main(["generate", PROMPT, *words]) == 2
    assert message in capsys.readouterr().err
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_argument_is_text_in_any_locale(capsys: Capture) -> None:
    assert as_text("naïve \N{FOX FACE}") == "naïve \N{FOX FACE}"
    assert as_text("na\udcc3\udcafve") == "naïve"  # as Python reads it where LANG is C
    for words in (["\udcff"], ["A", "--system", "\udcff"], ["A", "--stop", "\udcff"]):
        assert main(["generate", *words]) == 2
        assert r"An argument is no UTF-8 text. Received '\udcff'" in capsys.readouterr().err


def test_a_length_that_is_no_number_says_what_it_may_be(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "A", "--draft-length", "x"])
    assert "--draft-length: a whole number or auto, not 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--max-tokens", "--max-new-tokens"])
def test_a_number_that_is_too_small_is_told_with_the_flag_that_was_typed(
    flag: str, capsys: Capture
) -> None:
    for command in (["generate", "A"], ["plan"], ["doctor"]):
        assert main([*command, flag, "-5"]) == 2
        told = capsys.readouterr().err
        assert f"forerun {command[0]}: {flag} is too small. Received -5. Use 1 or more" in told


def test_a_file_that_is_not_there_is_no_missing_module(capsys: Capture) -> None:
    assert main(["certify", "--function", "nowhere.py:f"]) == 2
    assert "There is no such file. Received 'nowhere.py'" in capsys.readouterr().err


def test_a_module_that_a_function_needs_is_told_by_its_name(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "needs_another.py"
    file.write_text("import nowhere.at_all\n")
    assert main(["certify", "--function", f"{file}:verify"]) == 2
    told = "needs_another imports nowhere, which is not installed here."
    assert told in capsys.readouterr().err


def test_a_misspelt_drafter_is_answered_with_the_names(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str, *_: object, **__: object) -> None:
        raise InputError(f"huggingface.co has no {name}")

    monkeypatch.setattr("forerun.cli.loading.load", nothing)
    assert main(["generate", PROMPT, "--drafter", "nosuch"]) == 2
    told = capsys.readouterr().err
    assert "no drafter of that name, and no model. Received 'nosuch'. Use ngram, suffix" in told
    assert "huggingface.co" not in told
    assert main(["generate", PROMPT, "--drafter", "some/model"]) == 2
    assert "huggingface.co has no some/model" in capsys.readouterr().err


def test_the_command_alone_shows_its_help(capsys: Capture) -> None:
    assert main([]) == 0
    assert "forerun serve" in capsys.readouterr().out


def test_misspelt_commands_and_rules_are_answered_with_the_right_ones(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generat"])
    assert capsys.readouterr().err == (
        "forerun: there is no command 'generat'. Did you mean generate?\n"
    )
    for word, answer in (
        ("s", "serve or simulate or sweep?"),
        ("bench", "'bench'. Here it is called sweep."),
        ("nothing", "There are generate,"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([word])
        assert answer in capsys.readouterr().err
    assert main(["generate", PROMPT, "--rule", "blok"]) == 2
    assert "Did you mean block?" in capsys.readouterr().err


def test_several_prompts_on_the_line_are_sent_to_a_file(capsys: Capture) -> None:
    for words in (["A", "B"], ["A", "--seed", "3", "B"], ["What is", "A", "B"]):
        with pytest.raises(SystemExit, match="2"):
            main(["generate", *words])
        told = capsys.readouterr().err
        assert "B (put the prompt in quotes; several go into" in told
        assert "--prompts F" in told
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "A", "--seeed", "3"])
    assert "--prompts" not in capsys.readouterr().err.split("unrecognized")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "--prompt", "A"], 'the prompt stands alone: forerun generate "..."'),
        (["generate", "--prompt=A"], "--prompts F is a file of them"),
        (["generate", "A", "--seeed", "3"], "did you mean --seed?"),
        (["generate", "--modle", "m", "A"], "did you mean --model?"),
        (["generate", "A", "--temp", "1"], "did you mean --temperature?"),
        (["doctor", "--prompt", "F"], "did you mean --prompts?"),
        (["generate", "Hello you", "./m"], "the model stands first: forerun generate ./m 'Hello"),
        (["generate", "Hello you", "m.gguf"], "forerun generate m.gguf 'Hello you')"),
        (["certify", "mine.py"], "a function of your own: --function mine.py:NAME)"),
        (["certify", "mine.py:verify"], "--function mine.py:verify)"),
        (["doctor", "--top"], "did you mean --top-p?"),
    ],
)
def test_an_option_is_never_taken_for_another(
    words: list[str], message: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


LENGTHS = dict.fromkeys(("generate", "batch", "plan", "sweep", "doctor"), "--max-new-tokens")
LENGTHS |= {"serve": "--max-tokens", "train": "--answer-limit"}
"""Another name of `--max-tokens`, by command."""


@pytest.mark.parametrize("command", LENGTHS)
@pytest.mark.parametrize("words", [["a/model"], ["--model", "a/model"], ["--target=a/model"]])
def test_a_model_is_named_alike_everywhere(
    command: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[object] = []
    monkeypatch.setattr(
        f"forerun.cli.{command}.run", lambda args: named.append((args.model, args.max_tokens)) or 0
    )
    last = ["some text"] if command in ("generate", "batch") else []
    out = ["--out", "d"] if command in ("batch", "sweep", "train") else []
    for length in ("--max-tokens", LENGTHS[command]):
        assert main([command, *words, *last, length, "7", *out]) == 0
    assert named == [("a/model", 7)] * 2


def test_one_word_is_the_prompt_and_two_are_a_model_and_a_prompt(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        "forerun.cli.generate.run", lambda args: seen.append((args.model, args.prompt)) or 0
    )
    folder = str(tmp_path)
    for words in ([], ["hello"], [folder, "hello"], [folder, "--seed", "3", "hello"]):
        assert main(["generate", *words]) == 0
    assert seen == [(None, None), (None, "hello"), (folder, "hello"), (folder, "hello")]
    seen.clear()
    for words in ([folder], ["yes/no"], ["A long text. " * 300]):
        assert main(["generate", *words]) == 0
    assert seen == [(None, folder), (None, "yes/no"), (None, "A long text. " * 300)]
    seen.clear()
    (tmp_path / "config.json").write_text("{}")
    for words in ([folder], ["Qwen/Qwen3-8B"], ["my.gguf"], [folder, "--prompts", "F"]):
        assert main(["generate", *words]) == 0  # the prompt comes through a pipe, or from a list
    assert seen == [(name, None) for name in (folder, "Qwen/Qwen3-8B", "my.gguf", folder)]
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "gpt2", "hello"])
    assert "if gpt2 is a model: --model gpt2)" in capsys.readouterr().err
    assert main(["generate", folder, "hello", "--model", "m"]) == 2
    assert "The model is named twice." in capsys.readouterr().err
    assert main(["batch", "--out", folder]) == 2
    assert "There is nothing to answer." in capsys.readouterr().err
    assert main(["train", "--prompts", "F", "--out", folder]) == 2
    assert "A drafter is trained for a model." in capsys.readouterr().err


def test_help_names_what_there_is() -> None:
    assert list(shared.RULES) == rules.names()
    assert list(shared.DRAFTERS) == [*FACTORIES]
    assert make_parser().parse_args(["serve"]).slowdown == SLOWDOWN
    usual = Sampling(temperature=0.0)
    assert {name: default for name, (_, default, _) in shared.SAMPLING.items()} == {
        name: getattr(usual, name) for name in shared.SAMPLING
    }


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("what is", "it is no JSON: Expecting value, at character 1"),
        ('"what is"', "it is no JSON object"),
        ('{"promt": "what is"}', "its keys are 'promt'; known are 'prompt' and 'turns'"),
    ],
)
def test_a_broken_line_of_json_is_no_prompt(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch,
    ending: str, line: str, reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("forerun.cli.generate.load_target", None)
    file = tmp_path / f"prompts{ending}"
    file.write_text(f'{{"prompt": "fine"}}\n{line}\n', encoding="utf-8")
    assert main(["generate", "--prompts", str(file)]) == 2
    assert f"Line 2 of {file} holds no prompt ({reason})" in capsys.readouterr().err
    assert main(["train", "./mine", "--prompts", str(file), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert f"Line 2 of {file} is no prompt in JSON ({reason})" in told


def test_trees_as_they_are_typed() -> None:
    assert tree("--tree", None) is None
    assert tree("--tree", "16") == 16
    assert tree("--tree", "2,2") == Tree.of_branching((2, 2))
    assert tree("--tree", "3,1,1") == Tree.of_branching((3, 1, 1))


@pytest.mark.parametrize("rule", ["match", "siblings", "traversal"])
def test_a_tree_of_a_given_shape_for_every_rule_that_judges_trees(
    tiny_model: str, capsys: Capture, rule: str
) -> None:
    words = ["generate", PROMPT, "--target", tiny_model, "--drafter", tiny_model, "--json"]
    words += ["--temperature", "0.8", "--seed", "3", "--max-new-tokens", "20"]
    assert main([*words, "--tree", "2,2", "--rule", rule]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)["stats"]
    assert shown.err == ""
    assert found["notes"] == []
    assert max(found["drafted_by_round"]) == 6
    assert main([*words, "--tree", "8", "--rule", "ratio"]) == 2
    assert "siblings or traversal; the last two with a shape" in capsys.readouterr().err


def test_the_doctor_takes_what_generate_takes(tiny_model: str, capsys: Capture) -> None:
    helps = []
    for command in ("generate", "doctor"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        helps.append(shown.split("--drafter D ")[-1].split(" --")[0])
    assert "heads+suffix for the default model" in helps[0]
    assert helps[0].startswith("auto, ngram, suffix")
    assert helps[0].split(" (default")[0] == helps[1].split(" (default")[0]
    words = ["doctor", "--target", tiny_model, "--limit", "2", "--max-new-tokens", "12"]
    for options in (
        ["--drafter", "ngram+suffix", "--tree", "8"],
        ["--tree", "2,2", "--rule", "traversal", "--drafter", tiny_model],
    ):
        assert main([*words, *options]) == 0
        assert "2 identical" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rule", "temperature"), [("ratio", "0.8"), ("typical", "0"), ("typical", "1")]
)
def test_the_doctor_holds_no_rule_to_what_it_does_not_promise(
    capsys: Capture, rule: str, temperature: str
) -> None:
    assert main(["doctor", "--rule", rule, "--temperature", temperature]) == 2
    assert f"Received {rule} at temperature {temperature}" in capsys.readouterr().err


def test_the_doctor_takes_a_device_and_a_dtype(
    tiny_model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target and drafter get both: differences come with them."""
    asked: list[tuple[str | None, str | None]] = []

    def noted(name: str, device: str | None, dtype: str | None, **options: Any) -> Any:
        asked.append((device, dtype))
        return load(name, device, dtype, **options)

    monkeypatch.setattr("forerun.cli.loading.load", noted)
    words = ["doctor", "--target", tiny_model, "--drafter", tiny_model, "--limit", "1"]
    assert main([*words, "--device", "cpu", "--dtype", "float64", "--max-new-tokens", "8"]) == 0
    assert "1 identical" in capsys.readouterr().out
    assert asked == [("cpu", "float64")] * 2
    assert main([*words, "--device", "nowhere"]) == 2
    assert "There is no such kind of device" in capsys.readouterr().err


def test_the_doctor_shows_prompts_under_a_header(
    tiny_model: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(f"the cat\n{PROMPT}\nnever used\n")
    words = ["doctor", "--target", tiny_model, "--prompts", str(file), "--drafter", "ngram"]
    assert main([*words, "--limit", "2", "--max-new-tokens", "6"]) == 0
    header, first, second, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["tokens/round", "prompt", "speculative", "against", "plain", "text"]
    assert first[14:].split() == ["the", "cat", "identical"]
    assert second[14:].startswith("the cat sat on the mat, the ...   identical")
    assert header.index("prompt") == 14 == first.index("the cat")


def test_a_folder_without_a_tokenizer_is_told_in_words_for_a_shell(
    tiny_model: str, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for file in Path(tiny_model).iterdir():
        if file.suffix == ".safetensors" or file.name in ("config.json", "generation_config.json"):
            shutil.copy(file, folder)
    assert main(["generate", PROMPT, "--target", str(folder)]) == 2
    told = capsys.readouterr().err
    assert "has no tokenizer, so it cannot read a text" in told
    assert "tokenizer.save_pretrained(folder)" in told


def test_auto_is_a_drafter_by_name(tiny_model: str, capsys: Capture) -> None:
    words = ["generate", PROMPT, "--target", tiny_model, "--max-new-tokens", "20", "--json"]
    texts = []
    for drafter in (["--drafter", "none"], ["--drafter", "auto"], []):
        assert main([*words, *drafter]) == 0
        found = json.loads(capsys.readouterr().out)
        texts.append(found["text"])
        assert (found["stats"]["drafted"] > 0) is (drafter != ["--drafter", "none"])
    assert len(set(texts)) == 1


def test_a_server_calls_its_usual_drafter_by_its_own_name() -> None:
    target = TableModel.random(vocab_size=5, order=1, seed=0)
    made = settled({"auto": "auto", "mine": NGram(), "none": None}, target)
    assert made == {"suffix": Suffix(), "mine": NGram(), "none": None}
