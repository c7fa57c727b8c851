"""Compiled code that is kept on disk."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

numba = pytest.importorskip("numba")

PROGRAM = """
import sys
from typing import NamedTuple
import numba
from forerun.lean.jit import exact_entry

class Pair(NamedTuple):
    one: int
    two: int

sys.modules["gone"] = sys.modules[__name__]
Pair.__module__ = sys.argv[1]

@exact_entry
def total(pair):
    return pair[0] + pair[1]

print(total(Pair(2, 3)), sum(total.stats.cache_hits.values()))
"""


ASKS = """
from forerun.lean.jit import exact_entry, is_on_disk

@exact_entry
def double(number):
    return 2 * number

FOUND = [is_on_disk(double), double(4), is_on_disk(double)]
"""


def run_with_cache(folder: Path, *command: str) -> str:
    """What a program prints that keeps its compiled code in this folder."""
    how = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=how, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_index_that_names_a_type_that_is_gone_is_done_without(tmp_path: Path) -> None:
    """As after an upgrade in which a type has moved."""
    program, cache = tmp_path / "program.py", tmp_path / "cache"
    program.write_text(PROGRAM)
    assert run_with_cache(cache, str(program), "gone") == "5 0\n"
    program.write_text(PROGRAM.replace('sys.modules["gone"] = sys.modules[__name__]', ""))
    assert run_with_cache(cache, str(program), "__main__") == "5 0\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that keeps its compiled code in a folder `cache` beside it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "program.py").write_text(ASKS)
    return tmp_path / "program.py"


def found(program: Path) -> Any:
    """What the program finds; its functions are made anew, as in another process."""
    return runpy.run_path(str(program), run_name="asks")["FOUND"]


def test_what_is_on_disk_is_known_before_it_is_called(program: Path) -> None:
    assert found(program) == [False, 8, True]
    assert found(program) == [True, 8, True]
    program.write_text(ASKS.replace("2 * number", "3 * number"))
    assert found(program) == [False, 12, True]


@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
def test_damaged_files_are_made_again(kind: str, program: Path) -> None:
    found(program)
    (file,) = program.with_name("cache").rglob(kind)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    is_known = kind == "*.nbc"  # the index still says so
    assert found(program) == [is_known, 8, True]
    assert file.read_bytes() != whole[: len(whole) // 2]
    assert found(program) == [True, 8, True]
