"""How a certificate reads, for people and for machines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forerun.proof import Certificate, Finding

FINE = Finding("easy", "exact", 1e-16, 1e-12, 1e-12, 1.0)
WRONG = Finding("hard", "exact", 0.25, 1e-12, 1e-12, 1.0)
CHANCE = Finding("drawn", "sampled", 0.01, 0.02, 0.03, 0.999, samples=1000)
BROKEN = Finding("odd", "exact", 1.0, 0.0, 1e-12, 1.0, note="emitted nothing")


def test_lossless_means_every_case_passed() -> None:
    assert Certificate("mine", (FINE,)).lossless
    assert not Certificate("mine", (FINE, WRONG)).lossless
    assert not Certificate("mine", (FINE, BROKEN)).lossless


def test_a_notebook_shows_one_line() -> None:
    assert repr(Certificate("mine", (FINE, FINE))) == "Certificate(mine: lossless (exact, 2 cases))"


def test_lossless_is_said_only_of_what_was_proven() -> None:
    exact, drawn = Certificate("mine", (FINE,)), Certificate("mine", (CHANCE,))
    assert exact.proven
    assert exact.verdict == "lossless"
    assert drawn.lossless
    assert not drawn.proven
    assert drawn.verdict == "no bias of 0.03 or more found"
    for found in (drawn, Certificate("mine", (FINE, CHANCE))):
        assert "lossless" not in str(found)
        assert json.loads(found.to_json())["proven"] is False
    wrong = Certificate("mine", (WRONG,))
    assert not wrong.proven
    assert wrong.verdict == "NOT lossless"


@pytest.mark.parametrize(
    ("detectable", "words"), [(0.1701, "0.18"), (0.17, "0.17"), (0.0246, "0.025"), (1.0, "1")]
)
def test_what_is_claimed_is_rounded_up(detectable: float, words: str) -> None:
    found = Certificate("mine", (replace(CHANCE, detectable=detectable),))
    assert found.verdict == f"no bias of {words} or more found"


def test_how_many_samples_would_do() -> None:
    """A bias half as large takes four times as many."""
    found = Certificate("mine", (CHANCE, replace(CHANCE, detectable=0.04)))
    assert found.samples_for(0.02) == 4000
    assert "take about 4,000 samples per case: samples=4000, or --samples 4000." in str(found)
    assert "To catch" not in str(Certificate("mine", (replace(CHANCE, detectable=0.02),)))
    assert "To catch" not in str(Certificate("mine", (FINE,)))


def test_the_worst_case_comes_first_in_the_summary() -> None:
    found = Certificate("mine", (FINE, WRONG, CHANCE))
    assert found.worst is WRONG
    assert found.bias == 0.25
    assert found.method == "exact and sampled"
    assert found.detectable == 0.03
    assert Certificate("mine", (FINE, WRONG, BROKEN)).worst is BROKEN


def test_a_table_for_people() -> None:
    text = str(Certificate("mine", (FINE, WRONG, BROKEN)))
    lines = text.splitlines()
    assert lines[0] == "mine: NOT lossless (exact, 3 cases)"
    assert lines[2].startswith("  easy")
    assert lines[3].startswith("! hard")
    assert lines[4].endswith("emitted nothing")
    assert "1.0e-12 or more would have been caught." in lines[-1]
    assert "each with probability 0.9990" in str(Certificate("mine", (CHANCE,)))


def test_json_for_machines() -> None:
    data = json.loads(Certificate("mine", (FINE, CHANCE)).to_json())
    assert data["subject"] == "mine"
    assert data["lossless"] is True
    assert data["verdict"] == "no bias of 0.03 or more found"
    assert data["worst_case"] == "drawn"
    assert data["detectable_bias"] == 0.03
    assert data["power"] == 0.999
    assert [case["passed"] for case in data["cases"]] == [True, True]
    assert data["cases"][1]["samples"] == 1000


def test_a_failure_comes_with_an_example() -> None:
    wrong = replace(WRONG, example="the text [1] comes with probability 0.5")
    text = str(Certificate("mine", (FINE, BROKEN, wrong)))
    assert "For example, in the case 'hard' the text [1] comes with probability 0.5." in text
    assert "For example" not in str(Certificate("mine", (replace(wrong, bias=1e-10),)))
    assert "For example" not in str(Certificate("mine", (replace(wrong, limit=1.0),)))
