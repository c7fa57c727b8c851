"""Fixtures every folder of tests may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from forerun.engine.controller import Choice, Controller
from libraries import NAMES, Library, load

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(params=NAMES)
def lib(request: pytest.FixtureRequest) -> Library:
    """Each array library in turn."""
    return load(request.param)


@pytest.fixture(autouse=True)
def steady(request: pytest.FixtureRequest) -> Iterator[None]:
    """`draft_length="auto"` minds the clock; outside its own tests it always says 5."""
    chosen: Any = Controller.choose
    if "test_controller" not in request.module.__name__:
        Controller.choose = lambda self, own, room, *_: Choice([min(5, each) for each in room])  # type: ignore[method-assign]
    yield
    Controller.choose = chosen  # type: ignore[method-assign]
