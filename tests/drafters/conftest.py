"""What tests of several drafters ask for."""

from __future__ import annotations

import pytest

from forerun import testing


@pytest.fixture(params=[100, pytest.param(testing.NUM_SEEDS, marks=pytest.mark.slow)])
def num_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many seeds `check_drafter` compares the claimed law with; on tables it is always all."""
    monkeypatch.setattr(testing, "NUM_SEEDS", request.param)
