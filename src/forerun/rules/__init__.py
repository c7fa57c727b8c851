"""The acceptance rules, one per file, and how to get them by name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from forerun.base.errors import InputError, explain, meant
from forerun.rules.base import Noise, Rule, Trial
from forerun.rules.block import Block
from forerun.rules.lenient import Lenient
from forerun.rules.match import Match
from forerun.rules.ratio import Ratio
from forerun.rules.siblings import Siblings
from forerun.rules.threshold import Threshold
from forerun.rules.traversal import Traversal
from forerun.rules.typical import Typical

RULES: dict[str, Callable[..., Rule]] = {
    "match": Match,
    "ratio": Ratio,
    "block": Block,
    "siblings": Siblings,
    "traversal": Traversal,
    "lenient": Lenient,
    "typical": Typical,
    "threshold": Threshold,
}

MEMBERS = ("name", "lossless", "needs_draft_probs", "judges_trees", "decide")


def names(*, lossless: bool | None = None) -> list[str]:
    """The rules' names; lossless=True or False keeps only those."""
    return [name for name in RULES if lossless is None or get(name).lossless == lossless]


def get(rule: str | Rule, **settings: Any) -> Rule:
    """Make a rule from its name and settings; a rule object is returned as it is.

    Raises InputError for an unknown name, and for an object that is not a rule.
    """
    if not isinstance(rule, str):
        return _checked(rule)
    if rule not in RULES:
        names = ", ".join(RULES)
        cure = f"Use one of {names}, or in Python an object of your own.{meant(rule, RULES)}"
        raise InputError(explain("There is no rule of that name.", repr(rule), cure))
    made = RULES[rule]
    unknown = set(settings) - set(signature(made).parameters)
    if unknown:
        own = ", ".join(signature(made).parameters) or "none"
        cure = f"Its settings are: {own}. What a rule promises belongs to its class."
        received = ", ".join(sorted(unknown))
        raise InputError(explain(f"{rule} has no such setting.", received, cure))
    return made(**settings)


DOUBTS: list[Callable[[Rule], None]] = []
"""Functions that check a user's own rule before it decides; `forerun.proof` registers one."""


def trusted(rule: str | Rule) -> Rule:
    """The rule to use in generation; a rule that is not one of ours is checked first."""
    chosen = get(rule)
    if type(chosen) not in RULES.values():
        for doubt in DOUBTS:
            doubt(chosen)
    return chosen


def _checked(rule: Rule) -> Rule:
    """The rule itself; raises InputError if it lacks a member that every rule must have."""
    if isinstance(rule, type):
        wrong, cure = "That is a class and not yet a rule.", f"Write {rule.__name__}()."
        raise InputError(explain(wrong, f"the class {rule.__name__}", cure))
    missing = [member for member in MEMBERS if not hasattr(rule, member)]
    if missing:
        cure = f"Pass a rule's name ({', '.join(RULES)}), or an object with {', '.join(MEMBERS)}."
        received = f"a {type(rule).__name__} without {', '.join(missing)}"
        raise InputError(explain("That is no rule.", received, cure))
    return rule


__all__ = [
    "RULES",
    "Block",
    "Lenient",
    "Match",
    "Noise",
    "Ratio",
    "Rule",
    "Siblings",
    "Threshold",
    "Traversal",
    "Trial",
    "Typical",
    "get",
    "names",
    "trusted",
]


def __dir__() -> list[str]:
    """The public names of this package."""
    return __all__
