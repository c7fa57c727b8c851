"""`forerun certify`: verdicts, JSON, functions of one's own, and exit codes."""

from __future__ import annotations

import functools
import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import forerun as fr
from forerun.cli import certify as command
from forerun.cli import main
from forerun.proof import mutants, standard_cases
from forerun.proof.mutants import MUTANTS

MINE = """
import numpy as np

def good(tokens, draft, target, rng):
    for slot, token in enumerate(tokens):
        if rng.random() * draft[slot][token] >= target[slot][token]:
            owed = np.maximum(target[slot] - draft[slot], 0)
            owed = owed if owed.sum() > 1e-12 else target[slot]
            return [*tokens[:slot], rng.choice(len(owed), p=owed / owed.sum())]
    return [*tokens, rng.choice(len(target[-1]), p=target[-1])]

def bad(tokens, draft, target, rng):
    return [int(np.argmax(target[0]))]

def seeds(tokens, draft, target, rng):
    return good(tokens, draft, target, np.random.default_rng(rng.integers(2**31)))

def follow(tokens, draft, target, rng, tree):
    kept, node = [], -1
    while True:
        sampled = int(rng.choice(target.shape[1], p=target[node + 1]))
        kept.append(sampled)
        nodes = [n for n in tree.children[node] if tokens[n] == sampled]
        if not nodes:
            return kept
        node = nodes[0]
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cases and two mutants instead of all."""
    some = [case for case in standard_cases() if case.name in ("one draft token", "sharp laws")]
    monkeypatch.setattr(command, "certify", functools.partial(fr.certify, cases=some))
    monkeypatch.setattr(mutants, "standard_cases", lambda seed: some)
    monkeypatch.setattr(command, "MUTANTS", MUTANTS[:2])


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a user's module in it, and the working directory there."""
    (tmp_path / "my_verifiers.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_verifiers", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_everything_is_one_line_each(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in fr.rules.names():
        assert sum(line[2:].startswith(name) for line in lines) == 1
    assert "5 lossless rules keep the target's joint distribution to 1e-12" in lines[-1]
    assert "2 of 2 known bugs" in lines[-1]
    assert sum(line.startswith("✓") for line in lines) == 10
    assert not any("\033" in line for line in lines)


def test_an_unexpected_verdict_is_an_error(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from forerun.proof.broken import walk
    from forerun.proof.mutants import Mutant

    monkeypatch.setattr(command, "MUTANTS", (Mutant("harmless", "no bug at all", walk),))
    assert main(["certify"]) == 1
    captured = capsys.readouterr()
    assert "✗ harmless" in captured.out
    assert "NOT CAUGHT" in captured.out
    assert "1 verdicts are not as they should be" in captured.err


def test_everything_as_json(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["rule"] * 5 + ["lossy"] * 3 + ["mutant"] * 2
    assert all(row["as_expected"] for row in rows)
    assert rows[-1]["story"] == MUTANTS[1].story


@pytest.mark.parametrize("rule", ["ratio", "lenient"])
def test_one_rule_case_by_case(quick: None, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A lossy rule is as it should be, so its exit code is 0 too."""
    assert main(["certify", "--rule", rule]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{rule}: {'lossless' if rule == 'ratio' else 'NOT lossless'} (exact")
    assert "sharp laws" in out
    main(["certify", "--rule", rule, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["lossless"] == (rule == "ratio")


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("bad", 1)])
def test_a_function_of_ones_own(
    quick: None, mine: None, name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "--function", f"my_verifiers:{name}"]) == code
    verdict = "lossless" if code == 0 else "NOT lossless"
    assert capsys.readouterr().out.startswith(f"my_verifiers:{name}: {verdict} (exact")


def test_what_was_only_sampled_is_not_called_lossless(
    quick: None, mine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = ["certify", "--function", "my_verifiers:seeds", "--samples", "1000"]
    assert main(command_line) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("my_verifiers:seeds: no bias of 0.19 or more found (sampled")
    assert "lossless" not in captured.out
    assert "To catch 0.02 take about" in captured.out
    assert captured.err.startswith("certify: the outcomes of my_verifiers:seeds cannot be listed")
    assert captured.err.count("\n") == 1, "no bar where nobody looks"
    assert main([*command_line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["proven"]) == ("no bias of 0.19 or more found", False)


def test_a_bar_on_a_terminal(
    quick: None, mine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    certifying = import_module("forerun.proof.certify")  # the package has a function of that name
    monkeypatch.setattr(certifying, "FIRST", 0)
    monkeypatch.setattr(certifying, "REFRESH", 0)
    assert main(["certify", "--function", "my_verifiers:seeds", "--samples", "1000"]) == 0
    shown = capsys.readouterr().err.split("\r")
    assert any("one draft token" in line and "left" in line for line in shown)
    assert not shown[-2].strip(), "erased in the end"


def test_a_function_for_trees(mine: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A case has other branches in it than a chain, and the function gets them."""
    assert main(["certify", "--function", "my_verifiers:follow", "--trees"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("my_verifiers:follow: lossless (exact")
    assert "tree (2, 2)" in out


def test_trees_need_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "--rule", "match", "--trees"]) == 2
    assert "--function FILE:NAME" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["", "./", "sub/"])
def test_a_function_by_the_name_of_its_file(
    quick: None, mine: None, tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "my_helper.py").write_text("ANSWER = 0\n")
    text = (tmp_path / "my_verifiers.py").read_text() + "\nfrom my_helper import ANSWER\n"
    (tmp_path / "sub" / "my_verifiers.py").write_text(text)
    assert main(["certify", "--function", f"{folder}my_verifiers.py:good"]) == 0
    assert "lossless" in capsys.readouterr().out


MISSING = ["my_verifiers:missing", "nowhere:verify", "nowhere.py:verify", "my_verifiers", ":"]


@pytest.mark.parametrize("spec", MISSING)
def test_a_function_that_cannot_be_found(
    mine: None, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "--function", spec]) == 2
    err = capsys.readouterr().err
    found = ("cannot be found", "There is no such file", "has nothing of that name")
    assert any(words in err for words in found)
    assert "mine.py:verify" in err


@pytest.mark.parametrize(
    ("spec", "cure"),
    [
        ("my_verifiers.py", "Write its name after a colon: my_verifiers.py:follow."),
        ("my_verifiers.py:folow", "Did you mean follow?"),
        ("my_verifiers.py:good.decode", "Name the class alone: my_verifiers.py:good."),
    ],
)
def test_what_the_file_has_is_suggested(
    mine: None, spec: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "--function", spec]) == 2
    assert cure in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def verify(:\n", r"SyntaxError: .*broken\.py, line 1"),
        ("import math\n\nmath.sqrt(-1)\n", r"ValueError: .*\(broken\.py, line 3\)"),
    ],
)
def test_a_file_that_fails_says_where(
    code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(code)
    assert main(["certify", "--function", f"{tmp_path}/broken.py:verify"]) == 2
    assert re.search(rf"broken cannot be imported\. Received {said}", capsys.readouterr().err)


def test_too_few_samples_are_refused(mine: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "--function", "my_verifiers:good", "--samples", "5"]) == 2
    assert "Too few samples" in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["certify", "--help"])
    out = capsys.readouterr().out
    assert "forerun certify --rule block" in out
    assert "--function mine.py:verify" in out
