"""Fixtures every folder of tests may ask for."""

from __future__ import annotations

import pytest

from libraries import NAMES, Library, load


@pytest.fixture(params=NAMES)
def lib(request: pytest.FixtureRequest) -> Library:
    """Each array library in turn."""
    return load(request.param)
