"""docs/models.md: its table of families is what the passes say they serve."""

from __future__ import annotations

import pytest

from test_results import script

for module in ("torch", "transformers", "triton", "numba"):
    pytest.importorskip(module)


def test_the_families_are_those_of_the_passes() -> None:
    models = script("models")
    text = models.PAGE.read_text(encoding="utf-8")
    assert models.page(text) == text, "run `python scripts/models.py`"


def test_every_family_has_a_row() -> None:
    models = script("models")
    names = {family.name for family in models.FAMILIES.values()}
    assert {row[0] for row in models.families()[1:]} == names
