"""A quick certificate of somebody's own rule that says it is lossless, before it first decides.

One that is not is warned of once.  What was found is kept by the rule's code and settings, so a
class that is defined again is not judged again.
"""

from __future__ import annotations

from collections.abc import Hashable

from forerun.base.errors import warn
from forerun.proof.cases import edge_cases, standard_cases, tree_cases
from forerun.proof.certify import certify
from forerun.proof.telling import silent
from forerun.rules.base import Rule

QUICK = (
    "one draft token",
    "good drafter",
    "certain target",
    "nothing in common",
    "ties",
    "tree, unequal branches",
)
"""Cases that take a fraction of a second together and differ in what they expose."""

_judged: set[Hashable] = set()


def doubt(rule: Rule) -> None:
    """Warn if a rule that calls itself lossless is not."""
    decide = type(rule).decide
    code = getattr(decide, "__code__", decide)
    key = type(rule).__qualname__, code, repr(rule)
    if not rule.lossless or key in _judged:
        return
    _judged.add(key)
    every = [*standard_cases(), *edge_cases(), *(tree_cases() if rule.judges_trees else ())]
    cases = [case for case in every if case.name in QUICK]
    try:
        found = certify(rule, cases=cases, progress=silent)
    except Exception:  # what it cannot do shows, with the right error, when it decides
        return
    if not found.lossless:
        warn(
            f"The rule {rule.name!r} says lossless=True and is not: a bias of {found.bias:.2g} in "
            f"the case {found.worst.case!r}. fr.certify(rule) shows all cases; a lossy rule says "
            "lossless=False."
        )
