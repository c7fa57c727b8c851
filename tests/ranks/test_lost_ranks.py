"""A rank that dies, stops or differs ends the run with a reason, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from spread_models import save_model

import forerun as fr
from forerun import ranks
from forerun.base.errors import InputError
from forerun.ranks import RankError, meeting

pytestmark = pytest.mark.distributed

PASS_SECONDS = 8.0
"""Ample for a pass of a tiny model, on a busy machine too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


def pid_of(target: Any) -> int:
    """The process of rank 1."""
    return int(target.ranks._place.processes[1].pid)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(holds: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


@pytest.mark.parametrize("moment", ["between rounds", "during a pass"])
def test_a_rank_that_is_killed_ends_the_run(folder: str, moment: str) -> None:
    with ranks.load(folder, 2, "cpu", "float32") as target:
        pieces = fr.stream(target, "the cat", max_new_tokens=400, ignore_eos=True)
        next(pieces)
        pid = pid_of(target)
        if moment == "between rounds":
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: target.ranks.failure is not None)
        else:  # it takes no part in the next pass, which waits for it until it dies
            os.kill(pid, signal.SIGSTOP)
            subprocess.Popen(["/bin/sh", "-c", f"sleep 1; kill -9 {pid}"])
        with pytest.raises(RankError, match="rank 1 ended with signal 9"):
            for _ in pieces:
                pass
        with pytest.raises(RankError, match="rank 1 ended"):
            fr.generate(target, "the cat", max_new_tokens=2)


def test_a_rank_that_stops_is_given_up(folder: str) -> None:
    with ranks.load(folder, 2, "cpu", "float32", pass_seconds=PASS_SECONDS) as target:
        fr.generate(target, "the cat", max_new_tokens=2)
        pid = pid_of(target)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RankError, match=r"score took longer than 8 s"):
            fr.generate(target, "the cat", max_new_tokens=2)
        wait_until(lambda: not is_running(pid))


def test_a_rank_that_fails_says_why(folder: str) -> None:
    with (
        ranks.load(folder, 2, "cpu", "float32") as target,
        pytest.raises(RankError, match="rank 1 failed: KeyError"),
        target.ranks.together("a test", ["commit", 99, [0], [1]]),
    ):
        target.ranks.reply()


SCRIPT = """
import sys, time
import forerun as fr
from forerun import ranks
target = ranks.load(sys.argv[1], 2, "cpu", "float32", pass_seconds=float(sys.argv[2]))
fr.generate(target, "the cat", max_new_tokens=2)
print(target.ranks._place.processes[1].pid, flush=True)
while sys.argv[3] == "busy":
    fr.generate(target, "the cat", max_new_tokens=100, ignore_eos=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("moment", "signals"),
    [
        ("busy", [signal.SIGKILL]),
        ("busy", [signal.SIGSTOP]),  # in a pass: they wait for it, and not for ever
        ("idle", [signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL]),  # they have time
    ],
)
def test_when_rank_0_is_lost_the_others_end(
    folder: str, moment: str, signals: list[signal.Signals]
) -> None:
    words = [sys.executable, "-c", SCRIPT, folder, str(PASS_SECONDS), moment]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        for number in signals:
            time.sleep(1.0)
            assert is_running(pid)
            process.send_signal(number)
        wait_until(lambda: not is_running(pid))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_ranks_of_different_versions_are_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = meeting.versions()
    monkeypatch.setattr(meeting, "versions", lambda: real | {"transformers": "5.0.0"})
    said = f"transformers {real['transformers']} on rank 1, 5.0.0 on rank 0"
    with pytest.raises(InputError, match=said):
        ranks.load(folder, 2, "cpu", "float32")


def test_a_rank_that_never_comes(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RankError, match="rank 1 with status 1"):
        ranks.load(folder, 2, "cpu", "float32")
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 1.0)
    with pytest.raises(RankError, match=r"within 1 s.* ranks \[1\]"):
        ranks.load(folder, 2, "cpu", "float32")


def test_torchrun_with_another_number_of_ranks(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="4 processes for --tensor-parallel 2"):
        ranks.is_follower(2)
    assert ranks.is_follower(4)
    assert not ranks.is_follower(None)


def test_a_server_over_two_ranks_answers_and_ends_with_them(folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-m", "forerun.cli", "serve", folder, "--device", "cpu", "--dtype", "float32"]
    words += ["--drafter", "ngram", "--port", str(port), "--tensor-parallel", "2"]
    server = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _is_ready(url))
        body = {"model": Path(folder).name, "prompt": "the cat", "max_tokens": 8, "seed": 4}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        alone = fr.load(folder, "cpu", "float32", lean=False)
        expected = fr.generate(
            alone, "the cat", sampling=fr.Sampling(temperature=1.0, seed=4), max_new_tokens=8
        )
        assert answer["choices"][0]["text"] == expected.text
        assert answer["system_fingerprint"].startswith("fp_")
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert len(children) == 1
        os.kill(int(children[0]), signal.SIGKILL)
        _, errors = server.communicate(timeout=300)
        assert server.returncode == 1
        assert "rank 1 ended with signal 9" in errors
    finally:
        server.kill()
        server.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
