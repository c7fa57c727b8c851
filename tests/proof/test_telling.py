"""What `certify` follows exactly, and what it says where it has to sample."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.base.clock import timed_by
from forerun.proof import standard_cases
from forerun.proof.certify import Telling


def by_cumulative_sum(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """A correct function that draws its numbers at once and searches for them."""
    numbers = rng.random(len(tokens))
    for place, token in enumerate(tokens):
        if numbers[place] * draft[place, token] > target[place, token]:
            rest = np.maximum(target[place] - draft[place], 0)
            edges = np.cumsum(rest / rest.sum())
            return [*tokens[:place], int(np.searchsorted(edges, rng.random(), side="right"))]
    return [*tokens, int(np.argmax(np.cumsum(target[-1]) > rng.random()))]


def test_a_search_in_a_cumulative_sum_is_followed_exactly() -> None:
    certificate = fr.certify(by_cumulative_sum)
    assert certificate.proven
    assert certificate.reason == ""


def test_sampling_is_announced_with_its_reason(capfd: pytest.CaptureFixture[str]) -> None:
    found = fr.certify(bare_uniform, cases=[next(standard_cases())], samples=1000)
    told = capfd.readouterr().err
    why = "use of the value of a random number"
    assert f"cannot be listed ({why}), so 1,000 texts are sampled" in told
    assert "1,000 catch 0.16 (about" in told
    assert "100,000 catch 0.016 (about" in told
    assert "--samples N" in told
    assert found.reason == why
    assert f"Sampled, since its outcomes cannot be listed: {why}." in str(found)


def bare_uniform(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    edges = np.cumsum(target[0])
    return [int(np.searchsorted(edges / edges[-1], float(rng.uniform()), side="right"))]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """After two seconds, and then twice a second."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    seconds = iter([0.0, 1.0, 3.0, 3.2, 14.0])
    with timed_by(lambda: next(seconds)):
        telling = Telling()
        for done in (1, 2, 3, 4):
            telling("a case", done, 8)
    shown = capsys.readouterr().err
    assert [line.rstrip() for line in shown.split("\r")][1:] == is_terminal * [
        "certify: 2 of 8 (a case), about 9 s left",
        "certify: 4 of 8 (a case), about 14 s left",
    ]
