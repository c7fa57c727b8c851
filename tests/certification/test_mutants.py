"""Every known bug is caught, and the code that the bugs were made from is not."""

from __future__ import annotations

import pytest

import forerun as fr
from forerun.certification.broken import block, walk
from forerun.certification.mutants import MUTANTS, Mutant


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 26
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.story for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_rejected(mutant: Mutant) -> None:
    """Exactly, and not by a hair: the smallest bias among them is a hundredth."""
    found = fr.certify(mutant.verify, draw=mutant.draw, name=mutant.name)
    assert found.method == "exact"
    assert not found.lossless
    assert found.bias > 0.005


@pytest.mark.parametrize("function", [walk, block])
def test_what_they_were_made_from_is_lossless(function: object) -> None:
    found = fr.certify(function)  # type: ignore[arg-type]
    assert found.method == "exact"
    assert found.lossless
