"""The drafter's pass, compiled by another process while this one compiles the target's."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import typeof

from forerun.base import clock
from forerun.base.clock import timed_by
from forerun.base.errors import InputError
from forerun.drafters.base import Turn
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.lean_runner import LeanRunner
from forerun.drafters.heads.precompile import SMALL
from forerun.lean import compiler
from forerun.lean.crew import new_board
from forerun.lean.forward import forward
from forerun.lean.heads_pass import draft
from forerun.lean.held import type_of_held
from forerun.loading.bundled import NAME
from forerun.loading.load import load
from forerun.sampling.options import Sampling

OTHER = Design(
    hidden_size=48, num_heads=6, num_kv_heads=2, head_size=8, mlp_size=70, layers=(1, 2, 3),
    num_tokens=40, rope_theta=5e5, norm_eps=1e-6,
)  # fmt: skip
SLEEPS, FAILS = "import time; time.sleep(60)", "raise SystemExit(1)"


def runner(design: Design) -> LeanRunner:
    generator = np.random.default_rng(0)
    weights = {
        name: generator.normal(size=shape).astype(np.float32)
        for name, shape in design.shapes.items()
    }
    embedding = generator.normal(size=(61, design.hidden_size)).astype(np.float32)
    return LeanRunner(design, weights, embedding, 2)


def test_arguments_of_every_call_have_the_types_that_are_compiled() -> None:
    """Otherwise the other process would compile what nobody calls, and this one its own."""
    one, ids = runner(OTHER), np.arange(OTHER.num_tokens)
    before = {*draft.signatures}  # type: ignore[attr-defined]
    state = one.start(2, 300)

    def features(count: int) -> Any:
        return np.ones((count, OTHER.num_features), np.float32)

    def turn(row: int, position: int) -> Turn:
        return Turn(row, 3, Sampling(temperature=0.5 * row), seed=7, position=position)

    one.extend(state, [0, 1], [features(200), features(3)], [[5] * 200, [1, 2, 3]])
    one.extend(state, [0], [np.asfortranarray(features(3))], [[1, 2, 3]])
    one.step(state, [0, 1], [-1, -1], [4, 5])
    one.step(state, [0], [0], [6])
    turns = [turn(0, 0), turn(1, 0)]
    one.extend_with_lines(state, [0, 1], [features(1)] * 2, [[8], [9]], turns, ids)
    one.extend_with_lines(state, [0], [features(2)], [[8, 9]], [turn(0, 2)], ids)
    begun = one.begin_line(state, turn(0, 2), 4, features(1), [3], ids)
    assert begun is not None
    begun[-1].finish()
    small = LeanRunner(
        SMALL,
        {name: np.zeros(shape, np.float32) for name, shape in SMALL.shapes.items()},
        np.zeros((1, SMALL.hidden_size), np.float32),
    )
    known = typeof(new_board(1, 1)), type_of_held(small.some_arguments())
    compiled = {*draft.signatures}  # type: ignore[attr-defined]
    assert known in compiled
    assert compiled - before <= {known}


@pytest.fixture
def unused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """As in a process that has begun nothing yet, with two threads and nothing on disk; what is
    started is kept in a list."""
    started: list[Any] = []

    def start(program: str = SLEEPS) -> Any:
        started.append(subprocess.Popen([sys.executable, "-c", program]))
        return started[-1]

    monkeypatch.setattr(compiler, "_has_begun", False)
    monkeypatch.setattr(compiler, "_process", None)
    monkeypatch.setattr(compiler, "usual_threads", lambda: 2)
    monkeypatch.setattr(compiler, "is_on_disk", lambda function: False)
    monkeypatch.setattr(compiler, "_start", start)
    monkeypatch.delenv(compiler.MARK, raising=False)
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_process_begins_once(unused: list[Any]) -> None:
    compiler.begin()
    compiler.begin()
    assert len(unused) == 1


@pytest.mark.parametrize("kept", [forward, draft])
def test_nothing_is_begun_where_one_pass_is_on_disk(
    kept: Any, unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "is_on_disk", lambda function: function is kept)
    compiler.begin()
    assert not unused


def test_nothing_is_begun_where_there_is_one_core(
    unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "usual_threads", lambda: 1)
    compiler.begin()
    assert not unused


def test_the_other_process_begins_none_itself(
    unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compiler.MARK, "1")
    compiler.begin()
    assert not unused


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not copy processes")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_copy_of_this_process_waits_for_nothing_and_stops_nothing(
    unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out: list[Any] = []
    monkeypatch.setattr(atexit, "unregister", left_out.append)
    compiler.begin()
    copy = os.fork()
    if not copy:
        compiler.wait()
        os._exit(0 if left_out == [compiler._stop] else 1)
    assert os.waitpid(copy, 0)[1] == 0
    with pytest.raises(subprocess.TimeoutExpired):
        unused[0].wait(0.3)


def test_a_user_who_interrupts_leaves_nothing_behind(
    unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.begin()
    (process,) = unused
    real = process.wait

    def wait(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return int(real())

    monkeypatch.setattr(process, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        compiler.wait()
    assert process.poll() is not None


def test_waiting_is_time_of_the_compiler(
    unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = compiler._start
    monkeypatch.setattr(compiler, "_start", lambda: start("import time; time.sleep(0.5)"))  # type: ignore[call-arg]
    compiler.begin()
    with timed_by(time.perf_counter):
        before = clock.compiled()
        compiler.wait()
        assert clock.compiled() > before
    assert unused[0].returncode == 0
    unused.clear()
    compiler.wait()  # for nothing
    assert compiler._process is None


@pytest.mark.parametrize("program", [SLEEPS, FAILS])
def test_what_the_other_process_does_not_do_is_done_here(
    program: str, unused: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = compiler._start
    monkeypatch.setattr(compiler, "_start", lambda: start(program))  # type: ignore[call-arg]
    monkeypatch.setattr(compiler, "LIMIT", 0.2 if program == SLEEPS else 60)
    compiler.begin()
    one = runner(OTHER)
    state = one.start(1, 10)
    logits = one.extend(state, [0], [np.ones((1, OTHER.num_features), np.float32)], [[5]])
    assert np.isfinite(logits).all()
    assert unused[0].returncode not in (None, 0)


@pytest.mark.parametrize("name", ["python", "forerun-app", "uwsgi", "", None])
def test_what_is_no_python_or_is_gone_is_not_started(
    name: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / name if name else name
    if name not in ("python", "", None):
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", program and str(program))
    assert compiler._start() is None


def test_a_frozen_program_does_not_start_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert compiler._start() is None


def test_the_other_process_imports_what_this_one_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not what lies in the current folder; and what only this process knows where to find."""
    for folder, name in (("here", "numba"), ("elsewhere", "forerun_test_of_a_path")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    checks = f"assert numba.njit; import os; assert os.environ[{compiler.MARK!r}]"
    monkeypatch.setattr(compiler, "PROGRAM", f"import numba, forerun_test_of_a_path; {checks}")
    process = compiler._start()
    assert process is not None
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        (NAME, {}, True),
        (NAME, {"dtype": "float32"}, True),
        (NAME, {"quantize": "int8"}, True),
        (NAME, {"dtype": "float64"}, False),
        (NAME, {"lean": False}, False),
        (NAME, {"device": "meta"}, False),
        ("another/model", {}, False),
    ],
)
def test_the_default_model_has_its_drafter_compiled_beside_it(
    name: str,
    options: dict[str, Any],
    begins: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Before anything is read, since loading it compiles its own pass."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    events: list[str] = []

    def stop(*_: Any, **__: Any) -> Any:
        raise InterruptedError

    monkeypatch.setattr(compiler, "begin", lambda: events.append("begin"))
    loading = sys.modules["forerun.loading.load"]
    monkeypatch.setattr(loading, "local_copy", lambda _: tmp_path)
    for reading in ("_read", "check_folder"):
        monkeypatch.setattr(loading, reading, stop)
    with pytest.raises(InterruptedError):
        load(name, **{"device": "cpu", **options})
    assert events == ["begin"] * begins


def test_nothing_is_compiled_for_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "begin", lambda: pytest.fail("begun"))
    with pytest.raises(InputError, match="lean CPU pass"):
        load(NAME, "cpu", lean="nope")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_other_process_leaves_the_pass_on_disk(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(program: str) -> str:
        lines = f"import {compiler.__name__} as compiler; {program}"
        command = [sys.executable, "-c", lines]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ask = "print(compiler.is_on_disk(compiler.draft), compiler.is_on_disk(compiler.forward))"
    assert run(ask) == "False False\n"
    assert run("assert compiler._start().wait(500) == 0; " + ask) == "True False\n"
