"""A tiny model, saved once for all tests of the command."""

from __future__ import annotations

import pytest

from saved_model import save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))
