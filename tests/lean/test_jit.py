"""Compiled code that is kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

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


def test_an_index_that_names_a_type_that_is_gone_is_done_without(tmp_path: Path) -> None:
    """As after an upgrade in which a type has moved."""
    program = tmp_path / "program.py"

    def run(module: str) -> str:
        how = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(program), module]
        done = subprocess.run(command, capture_output=True, text=True, env=how, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    program.write_text(PROGRAM)
    assert run("gone") == "5 0\n"
    program.write_text(PROGRAM.replace('sys.modules["gone"] = sys.modules[__name__]', ""))
    assert run("__main__") == "5 0\n"
