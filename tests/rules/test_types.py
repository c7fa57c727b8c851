"""What a draft accepts and how a verdict reads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import forerun as fr
from forerun.rules.types import Drawn
from libraries import Library


def test_a_draft_says_how_it_was_drawn() -> None:
    tokens, probs = np.array([[1, 2]]), np.full((1, 2, 3), 1 / 3)
    assert fr.Draft.point(tokens).drawn is Drawn.POINT
    assert fr.Draft.shared(tokens).drawn is Drawn.SHARED
    assert fr.Draft.sampled(tokens, probs).drawn is Drawn.SAMPLED
    assert fr.Draft.sampled(tokens, logits=probs).logits is probs
    with pytest.raises(dataclasses.FrozenInstanceError):
        fr.Draft.point(tokens).tokens = tokens  # type: ignore[misc]


@pytest.mark.parametrize("both", [True, False])
def test_a_sampled_draft_needs_probs_or_logits(both: bool) -> None:
    rows = np.full((1, 1, 2), 0.5) if both else None
    with pytest.raises(
        fr.InputError, match=f"probs or its logits.*{'both' if both else 'neither'}"
    ):
        fr.Draft.sampled([[0]], rows, logits=rows)


def test_rows_of_different_length_are_padded() -> None:
    draft = fr.Draft.point([[4, 5, 6], [7], []])
    assert draft.tokens.tolist() == [[4, 5, 6], [7, 0, 0], [0, 0, 0]]
    assert list(draft.lengths) == [3, 1, 0]


@pytest.mark.parametrize("tokens", [[3, 1], (3, 1), [[3, 1]], [np.array([3, 1])]])
def test_lists_become_arrays_of_integers(tokens: object) -> None:
    draft = fr.Draft.point(tokens)
    assert draft.tokens.dtype.kind == "i"
    assert draft.tokens.reshape(-1).tolist() == [3, 1]
    assert draft.lengths is None


def test_no_guesses_for_one_sequence() -> None:
    draft = fr.Draft.point([[]])
    assert draft.tokens.shape == (1, 0)
    assert draft.tokens.dtype.kind == "i"


def test_an_empty_list_is_refused() -> None:
    """It could be one sequence without guesses, or no sequence at all."""
    with pytest.raises(fr.InputError, match=r"empty list.*Received \[\].*\[\[\]\]"):
        fr.Draft.point([])


def test_a_verdict_lists_the_emitted_tokens(lib: Library) -> None:
    verdict = fr.Verdict(
        lib.array([2, 0]), lib.array([9, 8]), lib.array([[1, 2], [3, 4]]), "match", True, seed=5
    )
    assert verdict.tokens() == [[1, 2, 9], [8]]
    assert [int(count) for count in verdict.num_emitted] == [3, 1]


def test_one_exception_family() -> None:
    for kind in (fr.InputError, fr.UnsupportedError, fr.MissingExtraError):
        assert issubclass(kind, fr.ForerunError)
    assert issubclass(fr.InputError, ValueError)
    assert issubclass(fr.MissingExtraError, ImportError)
