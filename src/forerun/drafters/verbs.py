"""Checks that an object is a drafter, at the call that was given it."""

from __future__ import annotations

from typing import Any

from forerun.base.errors import InputError, explain

VERBS = ("start", "enter", "propose", "observe", "release")


def check_verbs(drafter: Any) -> None:
    """Refuse a class instead of an instance, and an object that lacks one of the methods.

    A class has all the methods too, so it would fail only when one of them is called.
    """
    if isinstance(drafter, type):
        wrong, name = "That is a class and not yet a drafter.", drafter.__name__
        raise InputError(explain(wrong, f"the class {name}", f"Write {name}()."))
    missing = [verb for verb in VERBS if not callable(getattr(drafter, verb, None))]
    if missing:
        received = f"{type(drafter).__name__} without {', '.join(missing)}"
        cure = (
            "Pass a drafter, for example forerun.drafters.NGram() or "
            "forerun.drafters.Model(model); docs/write-a-drafter.md says how to write one."
        )
        raise InputError(explain("That does not draft.", received, cure))
