"""What may end any command early, and that it is told in a line or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.base import ctrl_c
from forerun.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
@pytest.mark.parametrize("words", [["completion", "bash"], ["--version"]])
def test_output_that_does_not_fit_is_one_sentence(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "The output cannot be written. Received 'No space left on device'" in told


def test_a_reader_that_is_gone_is_no_error(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().err == ""


def test_other_errors_of_the_system_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("forerun.cli.commands.run", fail)
    with pytest.raises(PermissionError):
        main(["info"])


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have switched off
sys.argv = {argv!r}
sys.orig_argv = {words!r}
class Interruption:
    def find_spec(self, name, *_):
        if name == {at!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interruption())
from forerun.cli import main
sys.exit(main({command!r}))
"""


@pytest.mark.parametrize(
    ("argv", "words", "at", "command"),
    [
        (["/usr/bin/forerun"], ["python", "/usr/bin/forerun"], "numpy", ["simulate"]),
        (["-m"], ["python", "-m", "forerun", "info"], "numpy", ["simulate"]),
        (["/usr/bin/forerun"], ["python", "/usr/bin/forerun"], "forerun.cli.commands", ["info"]),
    ],
)
def test_an_interruption_while_it_imports_ends_it_quietly(
    argv: list[str], words: list[str], at: str, command: list[str]
) -> None:
    code = INTERRUPTED.format(argv=argv, words=words, at=at, command=command)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\n")


def test_a_program_that_uses_the_package_keeps_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.default_int_handler
    monkeypatch.setattr(signal, "getsignal", lambda _: handlers[-1])
    monkeypatch.setattr(signal, "signal", lambda _, handler: handlers.append(handler))
    handlers = [before]
    for argv, words in ((["mine.py"], ["python", "mine.py"]), (["-m"], ["python", "-m", "mine"])):
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(sys, "orig_argv", words)
        ctrl_c.begin()
    assert handlers == [before]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/forerun"])
    ctrl_c.begin()
    assert handlers[-1] is not before
    ctrl_c.end()
    assert handlers[-1] is before
