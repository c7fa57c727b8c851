"""`forerun batch` end to end, killed and resumed, and what is typed wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from forerun.batch import worker_pool
from forerun.batch.answerer import AnswerCounts, Answerer, WorkerSettings
from forerun.batch.batch import JobSummary
from forerun.batch.batch_worker import _work
from forerun.batch.job_folder import BEGUN, JobFolder
from forerun.batch.lines import BatchRequest, OutputLine
from forerun.cli import main
from forerun.cli.batch import _in_words
from forerun.loading.bundled import NAME

Capture = pytest.CaptureFixture[str]
MESSAGES = [{"role": "user", "content": "the cat"}]
FLAGS = ("--max-tokens", "8", "--temperature", "0.8", "--max-batch", "4")


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def prompts(path: Path, count: int) -> Path:
    return write(path, *({"prompt": f"the cat sat on mat {i}, the cat"} for i in range(count)))


def bodies(out: Path) -> list[Any]:
    """The bodies of an output, without the job's start."""
    lines = [json.loads(line) for line in (out / "output.jsonl").open()]
    for line in lines:
        del line["response"]["body"]["created"]
    return lines


def test_a_dry_run_reads_and_loads_nothing(tmp_path: Path, capsys: Capture) -> None:
    source = write(
        tmp_path / "in.jsonl", {"prompt": "a"}, "{", {"messages": MESSAGES}, {}, {"prompt": " "}
    )
    assert main(["batch", str(source), "--out", str(tmp_path / "out"), "--dry-run"]) == 1
    told = capsys.readouterr()
    assert "5 lines, 3 bad" in told.out
    assert "failed: Line 2 is not a valid JSON object" in told.err
    assert "failed: Line 4 must have either 'prompt' or 'messages'" in told.err
    assert "failed: Line 5 has an empty prompt" in told.err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_finds_what_needs_no_model(tmp_path: Path, capsys: Capture) -> None:
    chat = {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions"}
    source = write(
        tmp_path / "in.jsonl",
        {**chat, "body": {"model": "mine", "messages": MESSAGES}},
        {"prompt": "a", "model": "gpt-4"},
        {"prompt": "a", "temprature": 1},
        {"prompt": "a", "echo": True},  # a completion may, and whether it is one is not known yet
        {"prompt": "a", "stream": True},
    )
    words = ["batch", str(source), "--out", str(tmp_path / "out"), "--dry-run", "--name", "mine"]
    assert main(words) == 1
    told = capsys.readouterr()
    assert "5 lines, 3 bad" in told.out
    assert "Line 2: The model 'gpt-4' does not exist here. Use 'mine'." in told.err
    assert "note: with --name gpt-4, and a new --out, lines may call it so" in told.err
    assert "Line 3: 'temprature' is not known here" in told.err
    assert "Line 5: 'stream' cannot be honoured in a batch" in told.err
    assert main([*words, "--limit", "1"]) == 0
    assert "1 line, 0 bad" in capsys.readouterr().out


def test_the_usual_names_of_models(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "folder").mkdir()
    for name, flags in (
        (NAME, []),
        (f"{NAME}-int8", ["--quantize", "int8"]),
        ("some/model", ["--model", "some/model"]),
        ("folder", ["--model", str(tmp_path / "folder")]),
    ):
        source = write(tmp_path / "in.jsonl", {"prompt": "a", "model": name})
        assert main(["batch", str(source), "--out", "out", "--dry-run", *flags]) == 0
    assert main(["batch", str(source), "--out", "out", "--dry-run"]) == 1
    assert f"Use '{NAME}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "0"], "--workers is too small"),
        (["--max-tokens", "0"], "--max-tokens is too small"),
        (["--limit", "0"], "--limit is too small"),
        (["--draft-length", "-1"], "--draft-length is too small"),
        (["--temperature", "-1"], "temperature"),
    ],
)
def test_wrong_flags_are_told_first(
    tmp_path: Path, capsys: Capture, flags: list[str], message: str
) -> None:
    source = prompts(tmp_path / "in.jsonl", 1)
    assert main(["batch", str(source), "--out", str(tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_files_and_folders_are_told_before_a_model_is_loaded(
    tmp_path: Path, capsys: Capture
) -> None:
    source = prompts(tmp_path / "in.jsonl", 1)
    (tmp_path / "empty.jsonl").write_text("")
    for file, out, message in (
        ("none.jsonl", "out", "The input cannot be read (No such file or directory)"),
        ("empty.jsonl", "out", "The input holds no line"),
        ("in.jsonl", "in.jsonl", "The output folder cannot be written (File exists)"),
        ("in.jsonl", ".", "The output folder holds files and no batch job"),
    ):
        assert main(["batch", str(tmp_path / file), "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    assert source.exists()


def test_the_summary_adds_up() -> None:
    counts = AnswerCounts(new_tokens=40, rounds=20)
    summary = JobSummary(Path("out"), num_lines=9, num_new=5, num_failed=1, counts=counts)
    assert _in_words(summary, 4.0) == (
        "9 lines: 8 answered, 1 failed; 5 of them done in this run, 40 tokens in 4 s with loading "
        "the model (10.0 tokens/s, 2.00 per round)"
    )
    assert _in_words(replace(summary, counts=AnswerCounts()), 4.0).endswith("done in this run")


@pytest.mark.slow
def test_answers_in_order_and_bad_lines_by_number(
    tmp_path: Path, tiny_model: str, capfd: Capture
) -> None:
    good = {"custom_id": "x", "method": "POST", "url": "/v1/completions"}
    source = write(
        tmp_path / "in.jsonl",
        {"prompt": "the cat"},
        "{",
        {**good, "body": {"prompt": "the mat", "max_tokens": 4}},
        {**good, "body": {"prompt": "the mat"}},
        {"prompt": "the cat", "temperature": 9},
    )
    out = tmp_path / "out"
    words = ["batch", str(source), "--out", str(out), "--model", tiny_model, *FLAGS]
    assert main(words) == 1
    told = capfd.readouterr()
    assert told.out.strip().splitlines()[-1] == str(out / "output.jsonl")
    for number in (2, 4, 5):
        assert f"failed: Line {number}" in told.err
    assert "5 lines: 2 answered, 3 failed; 5 of them done in this run" in told.err
    lines = [json.loads(line) for line in (out / "output.jsonl").open()]
    assert [line["custom_id"] for line in lines] == ["line-1", None, "x", "x", "line-5"]
    answered = [line["response"] is not None and line["response"]["status_code"] for line in lines]
    assert answered == [200, False, 200, False, 400]
    before = (out / "output.jsonl").read_bytes()
    assert main(words) == 1  # again: nothing is left to do, and nothing changes
    assert (out / "output.jsonl").read_bytes() == before
    assert main([*words, "--seed", "1"]) == 2
    assert "seed 1 instead of 0" in capfd.readouterr().err


class Near:
    """A worker in a thread of this process, which has imported what a process imports again."""

    def __init__(self, place: int, settings: WorkerSettings, threads: int, events: Any) -> None:
        self.place, self.is_ready, self.is_alone = place, False, False
        self.requests: dict[int, BatchRequest] = {}
        self.messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.thread = Thread(target=self._run, args=(settings, events))
        self.thread.start()

    def _run(self, settings: WorkerSettings, events: Any) -> None:
        def tell(message: dict[str, Any]) -> None:
            events.put((self, json.loads(json.dumps(message))))

        with suppress(EOFError):
            asyncio.run(_work(Answerer.load(settings), self, tell))  # type: ignore[arg-type]

    def get(self) -> dict[str, Any]:
        if (message := self.messages.get()) is None:
            raise EOFError
        return message

    def send(self, request: BatchRequest) -> None:
        self.requests[request.index] = request
        self.messages.put(asdict(request))

    def end(self) -> int:
        self.messages.put(None)
        self.thread.join()
        return 0


def test_ctrl_c_says_what_is_kept(
    tmp_path: Path,
    tiny_model: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The workers are processes; here one of them is stopped by its first answer."""
    source = prompts(tmp_path / "in.jsonl", 30)
    words = ["batch", tiny_model, str(source), *FLAGS, "--out"]
    add = JobFolder.add

    def interrupted(folder: JobFolder, index: int, line: OutputLine) -> None:
        add(folder, index, line)
        monkeypatch.setattr(JobFolder, "add", add)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JobFolder, "add", interrupted)
    out = tmp_path / "out"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever others left
    try:
        assert main([*words, str(out)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    told = capfd.readouterr().err.splitlines()[-1]
    assert told == "stopped: 1 of 30 lines answered; the same command goes on from there"
    monkeypatch.setattr(worker_pool, "Worker", Near)
    assert main([*words, str(out)]) == 0
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert bodies(out) == bodies(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_keeps_the_tokens_of_running_answers(tmp_path: Path, tiny_model: str) -> None:
    lines = [{"prompt": f"the cat {i}", "max_tokens": 400, "ignore_eos": True} for i in range(8)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "forerun.cli", "batch", tiny_model, str(source), "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    out = tmp_path / "out"
    process = subprocess.Popen([*command, str(out)], stderr=subprocess.PIPE)
    job = out / "job.json"
    while not job.exists() or "fingerprint" not in json.loads(job.read_bytes()):
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"and 8 begun; the same command goes on from there" in errors
    kept = json.loads((out / BEGUN).read_bytes())["begun"]
    assert len(kept) == 8
    assert all(len(tokens) > 10 for _, (tokens,) in kept)
    subprocess.run([*command, str(out)], check=True, capture_output=True)
    assert bodies(out) == bodies(tmp_path / "whole")


@pytest.mark.slow
def test_killed_three_times_and_resumed_it_is_the_undisturbed_run(
    tmp_path: Path, tiny_model: str
) -> None:
    """Also with another drafter and other numbers of workers each time."""
    source = prompts(tmp_path / "in.jsonl", 60)
    command = [sys.executable, "-m", "forerun.cli", "batch", str(source), "--model", tiny_model]
    command += [*FLAGS, "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    out = tmp_path / "out"
    journal = out / "journal.jsonl"
    settings = (["--drafter", "none"], ["--workers", "2"], ["--drafter", "suffix"], [])
    for kill, flags in enumerate(settings):
        process = subprocess.Popen([*command, str(out), *flags], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while kill < 3 and time.monotonic() < deadline and process.poll() is None:
            if journal.exists() and len(journal.read_bytes().splitlines()) >= 15 * (kill + 1):
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.005)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == (-signal.SIGKILL if kill < 3 else 0), errors.decode()
    indexes = [json.loads(line)["index"] for line in journal.open()]
    assert sorted(indexes) == list(range(60))  # none twice, none lost
    assert bodies(out) == bodies(tmp_path / "whole")
