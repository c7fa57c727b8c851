"""The tests that docs/serving-tests.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "serving-tests.md"


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(
        r"`((?:peers/)?test_\w+\.py)(?:::(test_\w+))?`", PAGE.read_text(encoding="utf-8")
    )
    assert len(named) > 80
    for file, test in named:
        text = (HERE / file).read_text(encoding="utf-8")
        assert f"def {test}(" in text or not test, f"{file}::{test}"
