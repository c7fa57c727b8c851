"""Every known bug is caught, and the code that the bugs were made from is not."""

from __future__ import annotations

import pytest

import forerun as fr
from forerun.proof import mutants, standard_cases, tree_cases
from forerun.proof.broken import block, descend, traverse, walk
from forerun.proof.mutants import MUTANTS, Mutant
from forerun.proof.rounds import DrawnAs
from forerun.trees.sibling_laws import Children

TELLING = {"impossible tokens", "tree, unequal branches"}
"""Of the cases for chains and of those for trees, one that catches every mutant."""


@pytest.fixture
def telling_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("standard_cases", "tree_cases"):
        every = getattr(mutants, name)(0)
        telling = [case for case in every if case.name in TELLING]
        monkeypatch.setattr(mutants, name, lambda seed, telling=telling: telling)


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 42
    assert sum(mutant.on_trees for mutant in MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.story for mutant in MUTANTS)


@pytest.mark.slow  # each one's largest bias, as docs/rules.md states it, is a test by default
@pytest.mark.usefixtures("telling_cases")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_rejected(mutant: Mutant) -> None:
    """Exactly, and not by a hair: the smallest bias among them is a hundredth."""
    found = mutant.certificate()
    assert found.method == "exact"
    assert not found.lossless
    assert found.bias > 0.005


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("block, one address", "address met twice: ACCEPT at (0, 0)"),
        ("coins by position", "address met twice: ACCEPT at (1, 0)"),
        ("drafts by position", "address met twice: DRAFT at (1, 0)"),
    ],
)
def test_numbers_met_twice_are_named(name: str, note: str) -> None:
    """The same rule with its own addresses is lossless in the same case, and has no note."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    cases = [case for case in standard_cases() if case.name == "context-dependent rows"]
    found = fr.certify(mutant.subject, addressing=mutant.addressing, cases=cases)
    assert found.findings[0].note == note
    assert note in str(found)
    assert found.findings[0].bias > 0.005
    right = fr.certify("block", cases=cases)
    assert right.lossless
    assert not any(finding.note for finding in right.findings)


@pytest.mark.parametrize("function", [walk, block])
def test_what_they_were_made_from_is_lossless(function: object) -> None:
    found = fr.certify(function)  # type: ignore[arg-type]
    assert found.method == "exact"
    assert found.lossless


@pytest.mark.parametrize("how", list(Children), ids=lambda how: how.value)
@pytest.mark.parametrize("function", [descend, traverse])
def test_what_they_were_made_from_is_lossless_on_trees(function: object, how: Children) -> None:
    found = fr.certify(function, draw=DrawnAs(how), cases=tree_cases())  # type: ignore[arg-type]
    assert found.method == "exact"
    assert found.lossless
