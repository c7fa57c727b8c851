"""Calls of somebody's verifier: how it must be called, and where it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from forerun.base.errors import ForerunError, InputError, explain

HOW = (
    "f(draft_tokens, draft_probs, target_probs, rng) with arrays (K,), (K, V) and (K + 1, V); on "
    "trees the tree is a fifth argument"
)


def check_call(function: Callable[..., Any], name: str, *, num_arguments: int) -> None:
    """Refuse a function that does not take what it will be given."""
    try:
        taken = signature(function)
    except (ValueError, TypeError):  # a builtin that does not say
        return
    try:
        taken.bind(*range(num_arguments))
    except TypeError as error:
        wrong = f"The function does not take {num_arguments} arguments."
        raise InputError(explain(wrong, f"{name}{taken}", f"It is called as {HOW}.")) from error


@contextmanager
def failing(name: str, case: str) -> Iterator[None]:
    """Say of an exception in somebody's code in which case it was raised."""
    try:
        yield
    except ForerunError:
        raise
    except Exception as error:
        wrong = f"The function fails in the case {case!r}."
        cure = f"It is called as {HOW}. Drafts may be empty."
        received = f"{name}: {type(error).__name__}: {error}"
        raise InputError(explain(wrong, received, cure)) from error
