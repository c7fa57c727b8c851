"""Checks early that an object has the methods of a drafter."""

from __future__ import annotations

from typing import Any

from forerun.base.errors import InputError, explain

VERBS = ("start", "enter", "propose", "observe", "release")


def check_verbs(drafter: Any) -> None:
    """Refuse a class instead of an instance, and an object without one of the methods of drafters.

    A class has all the methods too, so without this check it would fail only when one is called.
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
