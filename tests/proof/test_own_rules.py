"""A rule of one's own that is not what it says is warned of once, wherever it first decides."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.models import TableModel

TARGET = TableModel.random(vocab_size=3, order=1, seed=1)
DRAFT = fr.Draft.sampled([[0]], np.array([[[0.5, 0.3, 0.2]]]))
LAW = np.array([[[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]])


@pytest.fixture(autouse=True)
def _nothing_judged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    certifying = import_module("forerun.proof.certify")  # the package has a function of that name
    monkeypatch.setattr(certifying, "_judged", set())


@dataclass(frozen=True)
class Generous:
    """Accepts more than it may, by a factor, and says that it does not."""

    factor: float = 1.2
    name: str = "generous"
    lossless: bool = True
    needs_draft_probs: bool = True
    judges_trees: bool = False

    def decide(self, trial: Any, noise: Any) -> Any:
        return fr.rules.Lenient(1 / self.factor).decide(trial, noise)


def said(seen: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in seen if "says lossless=True" in str(one.message)]


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


def test_verify_warns_once(told: list[warnings.WarningMessage]) -> None:
    for _ in range(3):
        fr.verify(DRAFT, LAW, rule=Generous(), seed=1)
    (warning,) = said(told)
    assert "'generous' says lossless=True and is not: a bias of 0." in warning
    assert "fr.certify(rule)" in warning
    fr.verify(DRAFT, LAW, rule=Generous(1.5), seed=1)
    assert len(said(told)) == 2, "other settings are another rule"


def test_the_engine_warns(told: list[warnings.WarningMessage]) -> None:
    how: dict[str, Any] = {"drafter": fr.drafters.Model(TARGET), "max_new_tokens": 2}
    fr.generate(TARGET, [0], rule=Generous(), **how)
    fr.generate(TARGET, [0], rule=Generous(), **how)
    assert len(said(told)) == 1


@pytest.mark.parametrize(
    "rule", [Generous(1.0), replace(Generous(), lossless=False), fr.rules.Lenient(), "typical"]
)
def test_honest_rules_are_let_be(rule: Any, told: list[warnings.WarningMessage]) -> None:
    fr.verify(DRAFT, LAW, rule=rule, seed=1)
    assert not said(told)


def test_a_rule_that_fails_fails_where_it_decides(told: list[warnings.WarningMessage]) -> None:
    class Broken(Generous):
        def decide(self, trial: Any, noise: Any) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fr.verify(DRAFT, LAW, rule=Broken(), seed=1)
    assert not said(told)
