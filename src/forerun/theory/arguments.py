"""Converts and checks numeric arguments: float64 arrays, or an InputError with a cure."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from forerun.base.arrays import to_numpy
from forerun.base.errors import InputError, explain

Floats = Any
"""A float64 array, or a scalar where a function gets no leading axes; docstrings give shapes."""

SUM_TOLERANCE = 1e-3
"""The largest deviation of a row's sum from 1, for half-precision softmax; rows are
renormalised."""


def as_floats(name: str, values: Any) -> Floats:
    """Finite numbers as a float64 array; `name` is the argument's name in errors."""
    try:
        floats = np.asarray(to_numpy(values), dtype=np.float64)
    except (TypeError, ValueError) as error:
        cure = "Pass a number or a rectangular array of numbers."
        raise InputError(explain(f"{name} is not numeric.", repr(values), cure)) from error
    if not np.all(np.isfinite(floats)):
        num_bad = int(np.count_nonzero(~np.isfinite(floats)))
        cure = "Look for masked rows or an overflow upstream."
        raise InputError(explain(f"{name} must be finite.", f"{num_bad} NaN or inf", cure))
    return floats


def as_law(name: str, probs: Any) -> Floats:
    """Rows (..., V) of probabilities, renormalised to float64 precision."""
    rows = as_floats(name, probs)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        cure = "The last axis is the vocabulary, (..., V) with V >= 1."
        raise InputError(explain(f"{name} has no vocabulary.", f"shape {rows.shape}", cure))
    if np.any(rows < 0):
        cure = "Pass probabilities, not logits: softmax the last axis first."
        raise InputError(explain(f"{name} has negative entries.", f"{rows.min():g}", cure))
    sums = rows.sum(axis=-1, keepdims=True)
    worst = float(sums.flat[np.argmax(np.abs(sums - 1))]) if sums.size else 1.0
    if abs(worst - 1) > SUM_TOLERANCE:
        cure = "Normalise every row over the vocabulary."
        wrong = f"Rows of {name} must sum to 1."
        raise InputError(explain(wrong, f"a row with sum {worst:g}", cure))
    return rows / sums


def as_laws(target_probs: Any, draft_probs: Any) -> tuple[Floats, Floats]:
    """Two laws over one vocabulary, broadcast to a common shape (..., V)."""
    target, draft = as_law("target_probs", target_probs), as_law("draft_probs", draft_probs)
    shapes = f"{target.shape} and {draft.shape}"
    if target.shape[-1] != draft.shape[-1]:
        cure = "Map the drafter's tokens to the target's ids, or pad the shorter rows with zeros."
        raise InputError(explain("The vocabularies differ in size.", shapes, cure))
    try:
        target, draft = np.broadcast_arrays(target, draft)
    except ValueError as error:
        cure = "Leading axes must be equal, or 1."
        raise InputError(explain("Rows do not pair up.", shapes, cure)) from error
    return target, draft


def as_rates(name: str, values: Any) -> Floats:
    """Numbers in [0, 1] as a float64 array."""
    rates = as_floats(name, values)
    if np.any((rates < 0) | (rates > 1)):
        bad = rates[(rates < 0) | (rates > 1)].flat[0]
        cure = "Write 80% as 0.8."
        raise InputError(explain(f"{name} must lie in [0, 1].", f"{bad:g}", cure))
    return rates


def as_count(name: str, value: Any, *, minimum: int = 0) -> int:
    """A whole number that is at least `minimum`."""
    try:
        count = operator.index(value)
    except TypeError as error:
        cure = "Pass an integer."
        raise InputError(explain(f"{name} is a count.", repr(value), cure)) from error
    if count < minimum:
        cure = f"The smallest that makes sense is {minimum}."
        raise InputError(explain(f"{name} is too small.", count, cure))
    return count


def as_cost(name: str, value: Any, *, may_be_zero: bool = False) -> float:
    """A finite positive number, or also zero if allowed."""
    cost = as_floats(name, value)
    if cost.ndim or cost < 0 or (cost == 0 and not may_be_zero):
        wrong = f"{name} must be one number, {'zero or more' if may_be_zero else 'above zero'}."
        cure = "Use a measured number, in the unit asked for."
        raise InputError(explain(wrong, repr(value), cure))
    return float(cost)
