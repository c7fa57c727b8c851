"""`forerun demo` on a tiny model: the same text twice, and a difference that is not hidden."""

from __future__ import annotations

from typing import Any

import pytest

import forerun as fr
from forerun.cli import demo, main
from forerun.models.base import CpuPass

Capture = pytest.CaptureFixture[str]


def test_plain_and_speculative_are_the_same_text(
    tiny_model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "load_target", lambda _: fr.load(tiny_model))
    monkeypatch.setattr(demo, "Heads", fr.drafters.NGram)  # the shipped one fits another model
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", 6)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert out.count("The same 6 tokens") == 2
    assert out.count("stops an answer after 6 tokens") == 4
    for prompt in demo.PROMPTS.values():
        answers = out.partition(f"prompt: {prompt}")[2]
        plain, _, rest = answers.partition("\nplain:\n")[2].partition("\nspeculative:\n")
        assert rest.startswith(plain)
        assert "6 rounds, 1.00 tokens per round" in rest


@pytest.mark.parametrize("is_kept", [True, False])
def test_compiling_is_announced_where_there_is_something_to_compile(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    class OnOurPass(CpuPass):
        name = "one on the lean pass"

    monkeypatch.setattr(demo, "load_target", lambda _: OnOurPass())
    monkeypatch.setattr(demo, "generate", lambda *_, **__: None)
    monkeypatch.setattr(demo, "_compare", lambda *_: 0)
    monkeypatch.setattr("forerun.base.clock.is_code_kept", True)
    monkeypatch.setattr("forerun.lean.jit.is_on_disk", lambda _: is_kept)
    assert main(["demo"]) == 0
    told = capsys.readouterr().err
    assert "warming up" in told
    assert ("compiled for this machine" in told) is not is_kept


@pytest.mark.slow
def test_a_difference_is_diagnosed(
    tiny_model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "load_target", lambda _: fr.load(tiny_model))
    monkeypatch.setattr(demo, "Heads", fr.drafters.NGram)  # the shipped one fits another model
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", 6)
    answer = demo._answer

    def wrong(target: Any, prompt: str, drafter: Any) -> demo.Timed:
        found = answer(target, prompt, drafter)
        if drafter is not None:
            found.generation.tokens[3] ^= 1
        return found

    monkeypatch.setattr(demo, "_answer", wrong)
    assert main(["demo"]) == 1
    assert "The texts differ: bug: at output token 3" in capsys.readouterr().out
