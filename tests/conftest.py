"""Fixtures every folder of tests may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from forerun.engine.policy import Choice, PayingPolicy
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
    chosen: Any = PayingPolicy.choose
    if "test_policy" not in request.module.__name__:
        PayingPolicy.choose = lambda self, rows, requests, rooms: Choice(  # type: ignore[method-assign]
            [min(5, room) for room in rooms]
        )
    yield
    PayingPolicy.choose = chosen  # type: ignore[method-assign]
