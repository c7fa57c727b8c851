"""46 verifiers as people write them: the right ones are accepted and the wrong ones are not.

`verifiers` was written before anybody looked at how `certify` works.  By default a few verifiers of
every kind are judged in the cases that tell them apart; all of them in all cases are slow.
"""

from __future__ import annotations

from typing import Any

import pytest
from verifiers import numpy_right, numpy_wrong

import forerun as fr
from forerun.proof import edge_cases, standard_cases

pytest.importorskip("torch")

from verifiers import torch_right, torch_wrong

RIGHT = [*numpy_right.RIGHT, *torch_right.RIGHT]
WRONG = [*numpy_wrong.WRONG, *torch_wrong.WRONG]
SAMPLED = {"residual_by_rejection": "more than 150 random numbers", "own_generator": "Generator"}
"""Right ones whose outcomes cannot be listed, and why."""
ROUNDED = {"single_precision", "whole_batch", "recovered_tokens"}
"""Right ones that compute in float32."""


def cases_named(*names: str) -> list[Any]:
    every = [*standard_cases(), *edge_cases()]
    assert {*names} <= {case.name for case in every}
    return [case for case in every if case.name in names]


def name_of(function: Any) -> str:
    return f"{function.__module__.split('_')[0][-5:]}-{function.__name__}"


def is_rejected(function: Any, **how: Any) -> bool:
    try:
        return not fr.certify(function, **how).lossless
    except fr.InputError as error:  # NumPy refuses what it asks for
        return "ValueError" in str(error)


def test_there_are_46() -> None:
    assert (len(RIGHT), len(WRONG)) == (15, 31)


@pytest.mark.parametrize("function", RIGHT, ids=name_of)
def test_a_right_one_is_accepted(function: Any) -> None:
    found = fr.certify(function, cases=cases_named("one draft token", "no draft"), samples=1000)
    assert found.lossless
    if function.__name__ in SAMPLED:
        assert not found.proven
        assert SAMPLED[function.__name__] in found.reason
    elif function.__name__ in ROUNDED:
        assert found.verdict.startswith("lossless up to float32 rounding")
        assert found.bias < 1e-6
    else:
        assert found.proven


EDGES = [
    (numpy_wrong.unnormalised, "one draft token"),
    (numpy_wrong.negative_weights, "one draft token"),
    (numpy_wrong.too_short, "one draft token"),
    (numpy_wrong.bonus_by_length, "one draft token"),
    (numpy_wrong.one_in_a_million, "one draft token"),
    (numpy_wrong.large_epsilon, "one draft token"),
    (numpy_wrong.one_coin, "context-dependent rows"),
    (numpy_wrong.four_slots, "eight draft tokens"),
    (numpy_wrong.top_eight, "large vocabulary"),
    (numpy_wrong.skips_ties, "ties"),
    (numpy_wrong.skips_ties, "uniform target"),
    (numpy_wrong.uniform_fallback, "ties"),
    (numpy_wrong.greedy_without_draft, "no draft"),
    (numpy_wrong.sure_target, "certain target"),
    (numpy_wrong.impossible_tokens, "nothing in common"),
    (torch_wrong.greedy_without_draft, "no draft"),
    (torch_wrong.sure_target, "certain target"),
    (torch_wrong.nothing_in_common, "nothing in common"),
    (torch_wrong.resamples_from_p, "one draft token"),
    (torch_wrong.race_multiplied, "large vocabulary"),
]


@pytest.mark.parametrize(("function", "case"), EDGES, ids=lambda x: getattr(x, "__name__", x))
def test_a_wrong_one_is_rejected_where_it_shows(function: Any, case: str) -> None:
    assert is_rejected(function, cases=cases_named(case), samples=4000)


@pytest.mark.slow  # by default the stand-in finds them
@pytest.mark.parametrize("function", torch_wrong.WRONG, ids=name_of)
def test_a_wrong_one_is_rejected_by_sampling_too(function: Any) -> None:
    assert is_rejected(function, samples=5000, method="sampled")


@pytest.mark.slow  # up to a minute each
@pytest.mark.parametrize("function", RIGHT, ids=name_of)
def test_a_right_one_is_accepted_in_all_cases(function: Any) -> None:
    found = fr.certify(function, samples=2000)
    assert found.lossless
    assert found.proven or found.reason or found.rounding


@pytest.mark.slow
@pytest.mark.parametrize("function", WRONG, ids=name_of)
def test_a_wrong_one_is_rejected(function: Any) -> None:
    assert is_rejected(function, samples=2000)
