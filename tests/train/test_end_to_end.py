"""`forerun train` on a tiny Llama: from prompts to a drafter that guesses better than chance."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tiny_training import save_prompts, save_target

import forerun as fr
from forerun.cli import main
from forerun.drafters import Heads
from forerun.drafters.heads.files import load
from forerun.train import run as training_run
from forerun.train.sampler import Slots
from forerun.train.shards import list_shards
from forerun.train.training import STATE, Training

QUICK = ["--device", "cpu", "--draft-vocab", "48", "--rows", "16", "--batch-tokens", "512"]
QUICK += ["--answer-tokens", "300", "--learning-rate", "0.005", "--unroll", "2"]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return save_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


def train(target: str, out: Path, *options: str) -> int:
    torch.set_num_threads(1)
    return main(["train", target, "--out", str(out), *QUICK, *options])


def history(out: Path) -> list[dict[str, float]]:
    found: list[dict[str, float]] = torch.load(out / STATE)["progress"]["history"]
    return found


def losses(monkeypatch: Any) -> list[float]:
    """The loss of every step from now on."""
    seen: list[float] = []
    compute = Training._step

    def step(self, batch, share):
        loss = compute(self, batch, share)
        seen.append(float(loss))
        return loss

    monkeypatch.setattr(Training, "_step", step)
    return seen


class Learned(NamedTuple):
    """A run that has ended."""

    out: Path
    losses: list[float]
    told: str  # on standard error


@pytest.fixture(scope="module")
def learned(target, prompts, tmp_path_factory) -> Learned:
    out, told = tmp_path_factory.mktemp("learned") / "run", io.StringIO()
    options = ("--steps", "30", "--answer-tokens", "1000", "--learning-rate", "0.01")
    with pytest.MonkeyPatch.context() as patched, redirect_stderr(told):
        seen = losses(patched)
        assert train(target, out, "--prompts", prompts, *options) == 0
    return Learned(out, seen, told.getvalue())


def test_it_learns(target, learned):
    out, seen, told = learned
    assert len(seen) == 30
    assert sum(seen[-10:]) < 0.8 * sum(seen[:10])
    first, last = history(out)[0], history(out)[-1]
    kept_at_first, kept = (row["temperature 0"] - 1 for row in (first, last))
    assert kept > 2 * kept_at_first  # about four times as many; processors round differently
    card = (out / "README.md").read_text()
    assert re.search(r"\| steps \| 30 \|", card)
    assert "mean of the groups" in card
    assert "tokens/round" in told
    model = fr.load(target, lean=False)
    how: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "draft_length": 5}
    asked = [[1, 5 + i, 9, 2, 1] for i in range(6)]
    plain, ahead = (
        fr.generate(model, asked, drafter=drafter, **how) for drafter in (None, Heads(out))
    )
    assert [each.tokens for each in plain] == [each.tokens for each in ahead]
    rounds = sum(each.stats.rounds for each in ahead)
    assert rounds < 0.85 * 40 * len(asked)  # chance, one guess in 61, would save a few per cent


def test_a_block_drafter_learns(target, prompts, tmp_path):
    """One pass makes all its guesses; the whole way, from prompts to a folder, as for heads."""
    out = tmp_path / "run"
    options = ("--kind", "block", "--layers", "1", "--block-size", "4", "--stride", "1")
    options += ("--steps", "30", "--answer-tokens", "1000", "--learning-rate", "0.01")
    assert train(target, out, "--prompts", prompts, *options) == 0
    first, last = history(out)[0], history(out)[-1]
    assert last["temperature 0"] - 1 > 2 * (first["temperature 0"] - 1)
    assert load(out).design.kind == "block"
    assert "blocks of 4" in (out / "README.md").read_text()
    again = ("--from-data", str(out), "--steps", "1", "--start-from", str(out))
    assert train(target, tmp_path / "heads", *again) == 2
    assert train(target, tmp_path / "again", *again, *options[:8]) == 0
    assert history(tmp_path / "again")[0]["temperature 0"] == pytest.approx(
        last["temperature 0"], rel=0.05
    )


def test_a_second_training_begins_where_the_first_one_ended(target, learned, tmp_path, capfd):
    first, second = learned.out, tmp_path / "second"
    onwards = ("--from-data", str(first), "--steps", "1", "--start-from", str(first))
    assert train(target, second, *onwards) == 0
    rows = history(first)[0], history(first)[-1], history(second)[0]
    untrained, ended, began = (row["temperature 0"] for row in rows)
    assert began > 1.1 * untrained
    assert began == pytest.approx(ended, rel=0.05)  # but for rounding to 8 bits
    np.testing.assert_array_equal(load(second).tokens, load(first).tokens)
    assert f"| started from | {first} |" in (second / "README.md").read_text()
    assert train(target, second, *onwards[:-2]) == 2
    assert "start_from None" in capfd.readouterr().err


@pytest.mark.slow
def test_it_goes_on_learning(target, prompts, tmp_path):
    out = tmp_path / "run"
    options = ("--steps", "500", "--answer-tokens", "12000", "--unroll", "4")
    assert train(target, out, "--prompts", prompts, *options) == 0
    assert history(out)[-1]["temperature 0"] > 1.5
    assert history(out)[-1]["temperature 0.8"] > 1.5


@pytest.mark.slow
def test_both_stages_apart(target, prompts, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    assert train(target, data, "--prompts", prompts, "--data-only") == 0
    assert list_shards(data / "data")
    assert not (data / "heads.json").exists()
    assert train(target, out, "--from-data", str(data), "--steps", "3") == 0
    assert load(out).design.num_tokens == 48
    assert not (out / "data").exists()


def test_interrupted_while_training_it_says_so_and_goes_on(
    target, prompts, tmp_path, monkeypatch, capfd
):
    out = tmp_path / "run"
    step = Training._step

    def interrupted(self, batch, share):
        if self.progress.steps == 3:
            raise KeyboardInterrupt
        return step(self, batch, share)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "_step", interrupted)
        assert train(target, out, "--prompts", prompts, "--steps", "6") == 130
    assert "stopped; 3 training steps are saved; the same command" in capfd.readouterr().err
    assert train(target, out, "--prompts", prompts, "--steps", "6") == 0
    assert "going on after step 3" in capfd.readouterr().err
    assert torch.load(out / STATE)["progress"]["steps"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "option"), [((Slots, "advance"), "--rows"), ((Training, "_step"), "--batch-tokens")]
)
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory: 9 bytes")]
)
def test_memory_that_runs_out_names_what_to_lower(
    target, prompts, tmp_path, monkeypatch, capfd, where, option, error
):
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(*where, fail)
    assert train(target, tmp_path / "run", "--prompts", prompts, "--steps", "2") == 2
    assert f"Lower {option}" in capfd.readouterr().err


@pytest.mark.slow
def test_another_error_is_not_taken_for_one_of_memory(target, prompts, tmp_path, monkeypatch):
    def fail(*args: Any) -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(Training, "_step", fail)
    with pytest.raises(RuntimeError, match="sizes differ"):
        train(target, tmp_path / "run", "--prompts", prompts, "--steps", "2")


class TestBadInput:
    """All of it is refused before anything is computed."""

    @pytest.fixture(autouse=True)
    def nothing_is_computed(self, monkeypatch):
        for name in ("_collect", "_train"):
            monkeypatch.setattr(training_run, name, lambda *args: pytest.fail("it went ahead"))

    def refused(self, capfd, target, out, *options: str) -> str:
        assert train(target, out, *options) == 2
        found: str = capfd.readouterr().err
        return found

    @pytest.mark.parametrize(
        "lines", ["just text", '{"question": "?"}', '["a"]', '{"prompt": 5}', '{"prompt": " "}']
    )
    def test_prompts_that_are_none(self, target, tmp_path, capfd, lines):
        file = tmp_path / "prompts.jsonl"
        file.write_text('{"prompt": "fine"}\n\n' + lines + "\n")
        told = self.refused(capfd, target, tmp_path / "out", "--prompts", str(file))
        assert "Line 3" in told
        assert not (tmp_path / "out").exists()

    def test_files_of_no_prompts(self, target, tmp_path, capfd):
        empty, binary = tmp_path / "empty.jsonl", tmp_path / "binary"
        empty.write_text("\n")
        binary.write_bytes(b"\xff\xfe\x00")
        out = tmp_path / "out"
        assert "holds no prompt" in self.refused(capfd, target, out, "--prompts", str(empty))
        assert "not UTF-8" in self.refused(capfd, target, out, "--prompts", str(binary))
        assert "cannot be read" in self.refused(capfd, target, out, "--prompts", str(tmp_path))

    def test_prompts_and_answers_or_neither(self, target, prompts, tmp_path, capfd):
        out = tmp_path / "out"
        assert "neither" in self.refused(capfd, target, out)
        both = ("--prompts", prompts, "--from-data", str(tmp_path))
        assert "both" in self.refused(capfd, target, out, *both)

    def test_a_folder_of_something_else(self, target, prompts, tmp_path, capfd):
        (tmp_path / "diary.txt").write_text("dear diary")
        told = self.refused(capfd, target, tmp_path, "--prompts", prompts)
        assert "not a training run" in told

    def test_a_folder_of_another_run(self, target, prompts, tmp_path, capfd, monkeypatch):
        out = tmp_path / "run"
        monkeypatch.setattr(training_run, "_collect", lambda *args: None)
        monkeypatch.setattr(training_run, "_train", lambda *args: 0)
        assert train(target, out, "--prompts", prompts, "--steps", "5") == 0
        told = self.refused(capfd, target, out, "--prompts", prompts, "--steps", "6")
        assert "steps 6, was 5" in told
        other = save_target(tmp_path / "other", seed=8)
        told = self.refused(capfd, other, out, "--prompts", prompts, "--steps", "5")
        assert "holds a run for" in told
        assert str(target) in told
        assert other in told

    def test_a_file_for_a_folder(self, target, prompts, tmp_path, capfd):
        file = tmp_path / "file"
        file.write_text("")
        told = self.refused(capfd, target, file, "--prompts", prompts)
        assert "cannot be written to" in told

    def test_answers_of_another_target(self, target, tmp_path, capfd):
        data = tmp_path / "data"
        out = tmp_path / "out"
        told = self.refused(capfd, target, out, "--from-data", str(data))
        assert "no collected answers" in told
        other = save_target(tmp_path / "other", seed=8)
        data.mkdir()
        fingerprint = training_run.Fingerprint.of(fr.load(other, lean=False).model, "another")
        description = {"target": fingerprint.to_dict(), "settings": {}}
        (data / "run.json").write_text(json.dumps(description))
        told = self.refused(capfd, target, out, "--from-data", str(data))
        assert "collected from another" in told

    def test_an_unknown_objective(self, target, prompts, tmp_path, capfd):
        options = ("--prompts", prompts, "--objective", "luck")
        told = self.refused(capfd, target, tmp_path / "out", *options)
        assert "kl, tv, top1, mix" in told


def test_one_prompt_is_too_few(target, tmp_path, capfd):
    file = tmp_path / "one.jsonl"
    file.write_text('{"prompt": "w1"}\n')
    assert train(target, tmp_path / "out", "--prompts", str(file), "--steps", "1") == 2
    assert "No prompt is left" in capfd.readouterr().err


def test_too_little_time_for_one_answer_is_told(target, prompts, tmp_path, capfd):
    """More time is enough to go on in the same folder."""
    asked = "--prompts", prompts, "--data-only"
    assert train(target, tmp_path / "run", *asked, "--data-seconds", "1e-9") == 2
    assert "No answer was complete" in capfd.readouterr().err
    assert train(target, tmp_path / "run", *asked, "--data-seconds", "60") == 0
    assert list_shards(tmp_path / "run" / "data")
