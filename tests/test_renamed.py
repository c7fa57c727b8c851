"""Old names of public classes go on working, and say what to write instead."""

from __future__ import annotations

import importlib

import pytest

RENAMED = [
    ("forerun.theory", "Choice", "BestDraftLength"),
    ("forerun.theory.speed", "Choice", "BestDraftLength"),
    ("forerun.measure.planner", "Plan", "SpeculationPlan"),
    ("forerun.measure.probe", "Probe", "DrafterProbe"),
]


@pytest.mark.parametrize(("module", "old", "new"), RENAMED)
def test_an_old_name_is_the_new_class_and_warns(module: str, old: str, new: str) -> None:
    loaded = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now called {new}"):
        assert getattr(loaded, old) is getattr(loaded, new)


def test_an_unknown_name_is_still_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'forerun.theory' has no attribute 'Chioce'"):
        importlib.import_module("forerun.theory").Chioce  # noqa: B018
