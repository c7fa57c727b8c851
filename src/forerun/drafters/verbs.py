"""Is that a drafter at all?  Asked where one enters, because later is far from the mistake."""

from __future__ import annotations

from typing import Any

from forerun.errors import InputError, explain

VERBS = ("start", "propose", "observe", "release")


def check_verbs(drafter: Any) -> None:
    """Refuse a class whose parentheses were forgotten, and what lacks one of the verbs.

    A class has all the verbs itself, so it would get as far as the first call of one.
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
