"""The soak of benchmarks/soak.py, for seconds instead of minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import forerun

pytestmark = [pytest.mark.serve, pytest.mark.slow]

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_nobody_dies_nothing_fails_and_no_text_changes(tmp_path: Path) -> None:
    options = ["--minutes", "0.4", "--requests", "24", "--longest", "700", "--seed", "1"]
    source = str(Path(forerun.__file__).parents[1])
    soak = subprocess.Popen(
        [sys.executable, SOAK, *options, "--output", tmp_path / "soak"],
        env={**os.environ, "PYTHONPATH": source},
        start_new_session=True,
    )
    try:
        soak.wait(600)  # whether memory has settled by then is left to longer runs
    finally:
        with suppress(ProcessLookupError):
            os.killpg(soak.pid, signal.SIGKILL)  # and its servers
    told = json.loads((tmp_path / "soak.json").read_text())
    assert told["different"] == told["engines_replaced"] == 0
    assert told["broken"] == {}
    assert {status.rpartition(": ")[2] for status in told["statuses"]} <= {
        "200", "400", "404", "left",
    }  # fmt: skip
    assert told["requests"] > 20
