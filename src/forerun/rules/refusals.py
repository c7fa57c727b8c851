"""The errors for rows and tokens that cannot be judged, shared by rules and kernels."""

from __future__ import annotations

from typing import Any

from forerun.base.errors import InputError, explain
from forerun.rules.types import Draft


def as_draft(given: Any) -> Draft:
    """The given `Draft`; raises InputError for anything else, such as bare tokens."""
    if isinstance(given, Draft):
        return given
    cure = (
        "Say how the tokens were drawn: forerun.Draft.sampled(tokens, probs), or "
        "forerun.Draft.point(tokens) where that is not known."
    )
    raise InputError(explain("That is no draft.", f"a {type(given).__name__}", cure))


def not_finite(name: str, row: int, slot: int, received: str) -> InputError:
    """The error for a row of logits with NaN, or without a finite largest entry."""
    wrong = f"{name} has NaN, +Inf or nothing finite at row {row}, slot {slot}."
    cure = "A row needs one finite logit at least; -Inf forbids a token, NaN is a bug."
    return InputError(explain(wrong, received, cure))


def impossible(row: int, slot: int, token: int) -> InputError:
    """The error for a drafted token that is impossible under the law it claims to be drawn from."""
    wrong = f"A drafted token has draft probability 0 (row {row}, slot {slot})."
    cure = (
        "Pass the distribution the token was really drawn from, after its temperature and top-k; "
        "if that is unknown use Draft.point, which is exact for any draft."
    )
    return InputError(explain(wrong, f"token {token}", cure))


def outside(row: int, slot: int, token: int, vocab_size: int) -> InputError:
    """The error for a drafted token whose id is not in the vocabulary."""
    wrong = f"A draft token is not in the vocabulary (row {row}, slot {slot})."
    cure = f"Ids must lie in 0 .. {vocab_size - 1}; do draft and target share a tokenizer?"
    return InputError(explain(wrong, token, cure))
