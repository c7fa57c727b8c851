"""Fixtures every folder of tests may ask for."""

from __future__ import annotations

import gc
import os
import random
import re
import secrets
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
import pytest
from hypothesis import settings

from clocks import StillClock
from forerun.base.clock import ErraticClock, timed_by
from forerun.engine.steering.draft_planning import POLICIES
from libraries import NAMES, Library, load

# Kernels run in Triton's interpreter, on the CPU, unless a run for a device says otherwise
# (`make test-gpu`).  Triton reads this when it is imported, whichever test does that first.
os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
MARK = re.compile(r"^pytestmark = pytest\.mark\.(\w+)$", re.MULTILINE)
"""A mark of all tests of a file."""
ON_THE_CPU_PASS = {"cli", "drafters", "gguf", "lean", "loading", "measure", "models"}
"""Folders with tests that run the compiled pass."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: garbage is not looked for in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which nothing runs is not imported either: some need what takes long to load."""
    if not collection_path.match("test_*.py"):
        return None
    mark = MARK.search(collection_path.read_text(encoding="utf-8"))
    is_left_out = mark and re.search(rf"\bnot {mark[1]}\b", config.getoption("markexpr"))
    return True if is_left_out else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process compiles the CPU pass, and goes on with what needs it.  Another begins in the
    middle of the list; if it needed the pass there, it would compile it too."""
    items.sort(
        key=lambda item: (
            item.get_closest_marker("compiles") is None,
            item.path.parent.name not in ON_THE_CPU_PASS,
        )
    )


@pytest.fixture(params=NAMES)
def lib(request: pytest.FixtureRequest) -> Library:
    """Each array library in turn."""
    return load(request.param)


@pytest.fixture(autouse=True)
def erratic_clock(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """What `draft_length="auto"` sees of time and learns from it: for a test always the same."""
    monkeypatch.setattr(POLICIES, "_items", WeakKeyDictionary())
    with timed_by(ErraticClock(crc32(request.node.nodeid.encode()))):
        yield


@pytest.fixture(autouse=True)
def drawn_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that are drawn for requests without one, and the libraries' own generators: for a test
    always the same."""
    seed = crc32(request.node.nodeid.encode())
    monkeypatch.setattr(secrets, "randbits", random.Random(seed).getrandbits)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)


@pytest.fixture
def still_clock(erratic_clock: None) -> Iterator[StillClock]:
    """A clock for tests that say themselves how long things take."""
    clock = StillClock()
    with timed_by(clock):
        yield clock
