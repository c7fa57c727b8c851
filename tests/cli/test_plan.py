"""`forerun plan`: an answer, how sure it is, and how to follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clocks import StillClock
from forerun.cli import main
from forerun.drafters import Suffix
from forerun.lean.model import LeanModel
from forerun.measure import round_costs
from forerun.measure.planner import SpeculationPlan
from forerun.measure.pricing import Forecast
from forerun.measure.records import Interval
from forerun.models.huggingface import HuggingFaceModel


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rounds of each length will do."""
    monkeypatch.setattr(round_costs, "TIMED_TOKENS", 32)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the cat sat on the mat"}\n{"prompt": "what is the capital?"}\n')
    return str(path)


def test_a_plan_and_its_exports(
    tiny_model: str,
    prompts: str,
    capsys: pytest.CaptureFixture[str],
    still_clock: StillClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that drafts for itself costs as much as it saves: it never pays.  A pass takes a
    millisecond here, whatever is in it."""
    for kind in (HuggingFaceModel, LeanModel):
        score = kind.score

        def timed(*args: Any, score: Any = score) -> Any:
            still_clock.pass_by(1e-3)
            return score(*args)

        monkeypatch.setattr(kind, "score", timed)
    words = ["plan", tiny_model, "--drafter", tiny_model, "--prompts", prompts]
    options = ["--max-tokens", "16", "--max-draft-length", "2"]
    assert main([*words, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_prompts"] == 2
    assert found["speculate"] is False
    assert found["choice"] is None
    assert found["advice"].startswith("Not clear whether speculation pays: 2 prompts are too few")
    assert len(found["forecasts"]) == 2
    assert all(each["tokens_per_round"]["mean"] > 1.5 for each in found["forecasts"])
    assert [each["engine"] for each in found["exports"]] == [
        "forerun generate",
        "vllm serve",
        "sglang",
    ]
    assert found["exports"][0]["arguments"] == "--drafter none"


def test_a_plan_for_people(
    tiny_model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", tiny_model, "--drafter", "ngram", "--prompts", prompts, "--batch", "2"]
    options = ["--max-tokens", "16", "--max-draft-length", "2", "--temperature", "0.8"]
    assert main([*words, *options, "--rule", "match", "--tree", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{tiny_model}, 2 prompts of {prompts}, temperature 0.8, batch 2\n")
    assert "tokens per round" in shown
    assert "ngram tree 4" in shown
    assert "at batch 2" in shown
    assert "forerun generate: --drafter" in shown
    assert "ratio" not in shown.split("at batch 2")[0]


def test_what_is_compared_when_no_drafter_is_named(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that need no training of one's own; the default model has one that was trained for it."""

    class Enough(Exception):
        pass

    def stop(*args: object) -> None:
        raise Enough

    named: list[str] = []
    monkeypatch.setattr("forerun.cli.plan.load_drafter", lambda name, *_: named.append(name))
    monkeypatch.setattr("forerun.cli.plan.load_target", stop)
    for target, wanted in (
        ([], ["ngram", "suffix", "heads+suffix"]),
        (["HuggingFaceTB/SmolLM2-135M-Instruct"], ["ngram", "suffix", "heads+suffix"]),
        (["./mine"], ["ngram", "suffix"]),
    ):
        named.clear()
        with pytest.raises(Enough):
            main(["plan", *target, "--prompts", prompts])
        assert named == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "0"], "--batch is too small"),
        (["--max-draft-length", "0"], "--max-draft-length is too small"),
        (["--drafter", "none"], "drafts nothing"),
        (["--prompts", "/nowhere"], "cannot be read"),
        (["--tree", "x"], "--tree is not a range"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    words: list[str],
    said: str,
    prompts: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("forerun.cli.plan.load_target", refuse)
    monkeypatch.setattr("forerun.cli.plan.load_drafter", refuse)
    assert main(["plan", "--prompts", prompts, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_for_another_engine(
    prompts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that a shell can run; an engine without such a drafter is said to have none."""
    sure = Interval(1.5, 1.4, 1.6)
    choice = Forecast("suffix", "match", 3, None, 1, 0.0, sure, 0.01, sure)
    advice = SpeculationPlan("org/big", Suffix(), "suffix", choice, (choice,), 1, 0.0, 48)
    monkeypatch.setattr("forerun.cli.plan.plan", lambda *args, **options: advice)
    monkeypatch.setattr("forerun.cli.plan.load_target", lambda *args: None)
    monkeypatch.setattr("forerun.cli.plan.as_chat", lambda target, prompt: prompt)
    words = ["plan", "org/big", "--drafter", "suffix", "--prompts", prompts, "--for"]
    assert main([*words, "vllm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert lines[-1].startswith("exec vllm serve org/big --speculative-config '{")
    assert main([*words, "sglang"]) == 2
    assert "no drafter like suffix" in capsys.readouterr().err
