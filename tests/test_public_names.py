"""What `fr.<tab>` offers, and what a type checker knows of a call."""

from __future__ import annotations

import ast
import subprocess
import sys
from inspect import isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import forerun as fr
from forerun.base.errors import shown_by

ROOT = Path(__file__).parents[1]
MODULES = {"drafters", "grammars", "models", "rules", "theory"}
CALLS = """
from typing import Any
import forerun as fr
chat = [{"role": "user", "content": "hi"}]
reveal_type(fr.generate("m", "text"))
reveal_type(fr.generate("m", [1, 2], max_new_tokens=3))
reveal_type(fr.generate("m", chat, drafter=None))
reveal_type(fr.generate("m", ["a", "b"]))
reveal_type(fr.generate("m", [[1], [2]], drafter="ngram"))
reveal_type(fr.generate("m", [chat, chat]))
reveal_type(fr.stream("m", "text").results())
reveal_type(fr.stream("m", ["a"]).results())
reveal_type(next(fr.stream("m", ["a"])))
def anything(prompt: Any) -> None:
    reveal_type(fr.generate("m", prompt))
fr.generate("m", "text", temperature=1)
fr.generate("m", "text", max_new_tokens="3")
"""
ONE, MANY = "forerun.engine.results.Generation", "list[forerun.engine.results.Generation]"
REVEALED = [ONE] * 3 + [MANY] * 3 + [ONE, MANY, "forerun.engine.results.Piece", "Any"]


def test_tab_offers_what_is_meant_for_others() -> None:
    assert dir(fr) == sorted(fr.__all__)
    modules = {name for name in dir(fr) if isinstance(getattr(fr, name), ModuleType)}
    assert modules == MODULES
    for name in ("generate", "doctor", "audit", "law", "plan"):
        assert callable(getattr(fr, name))


@pytest.mark.parametrize("name", sorted(MODULES))
def test_tab_offers_no_modules_inside_the_packages(name: str) -> None:
    package = getattr(fr, name)
    assert dir(package) == sorted(package.__all__)
    assert not any(isinstance(getattr(package, one), ModuleType) for one in dir(package))


def test_help_says_what_a_call_takes_and_returns() -> None:
    for function, returned in ((fr.generate, "Generation | list[Any]"), (fr.stream, "Stream")):
        shown = signature(function)
        assert shown.return_annotation == returned
        assert shown.parameters["prompt"].annotation == "OnePrompt | ManyPrompts | Any"
        assert {"drafter", "sampling", "max_new_tokens", "stop"} <= set(shown.parameters)


FUNCTIONS = [name for name in fr.__all__ if isfunction(getattr(fr, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_without_arguments_is_answered_with_a_call_that_is_right(name: str) -> None:
    function = getattr(fr, name)
    with pytest.raises(TypeError, match=name) as caught:
        function()
    (note,) = caught.value.__notes__
    assert note.startswith(f"For example: fr.{name}(")
    call = ast.parse(note.removeprefix("For example: "), mode="eval").body
    assert isinstance(call, ast.Call)
    signature(function).bind(*call.args, **{str(one.arg): one.value for one in call.keywords})


def test_an_error_within_a_call_gets_no_example() -> None:
    @shown_by("halved(4)")
    def halved(number: Any) -> Any:
        return number / 2

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        halved("4")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.slow
def test_a_type_checker_knows_what_a_call_returns(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert revealed == REVEALED, done.stdout + done.stderr
    wrong = {int(line.split(":")[1]) for line in lines if ": error:" in line}
    assert wrong == {16, 17}, done.stdout
    assert 'Unexpected keyword argument "temperature"' in done.stdout
    assert 'Argument "max_new_tokens" to "generate" has incompatible type "str"' in done.stdout
