"""A tiny model, saved once for all tests of the command."""

from __future__ import annotations

import pytest
from processes import save_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))
