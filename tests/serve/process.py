"""A server in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running_server(*arguments: str, seconds: float = 120) -> Iterator[str]:
    """`forerun serve` with these arguments, at a port of its choice, until the block ends."""
    command = [sys.executable, "-m", "forerun.cli", "serve", "--port", "0", *arguments]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            yield _address(process, log, time.monotonic() + seconds)
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: object, deadline: float) -> str:
    """Where it says that it listens."""
    text = ""
    while time.monotonic() < deadline and process.poll() is None:
        log.seek(0)
        text = log.read()
        if found := re.search(r"API\s+(http://\S+)/v1\n", text):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"The server did not start:\n{text}")
