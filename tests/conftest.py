"""Fixtures every folder of tests may ask for."""

from __future__ import annotations

import pytest
from hypothesis import settings

from libraries import NAMES, Library, load

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(params=NAMES)
def lib(request: pytest.FixtureRequest) -> Library:
    """Each array library in turn."""
    return load(request.param)
