"""Drafters by what a command line calls them: `name`, `name:argument`, `a+b`, or a model.

A package adds its own by an entry point of the group `forerun.drafters`: a callable that makes the
drafter, given the text after the colon if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from forerun.drafters.base import Drafter
from forerun.drafters.mixed import Mixed
from forerun.drafters.model import Model
from forerun.drafters.ngram import NGram
from forerun.drafters.recycling import Recycling
from forerun.drafters.suffix import Suffix
from forerun.errors import ForerunError, InputError, explain

GROUP = "forerun.drafters"
Factory = Callable[..., Drafter]


def early_exit(num_layers: str = "") -> Drafter:
    from forerun.drafters.early_exit import EarlyExit

    if not num_layers.isdigit():
        cure = "Say how many layers draft, for example early-exit:12."
        raise InputError(explain("early-exit needs a number.", repr(num_layers), cure))
    return EarlyExit(int(num_layers))


def quantized(bits: Any = "int8") -> Drafter:
    from forerun.drafters.quantized import Quantized

    return Quantized(bits)


def heads(*source: str) -> Drafter:
    from forerun.drafters.heads import Heads

    made: Drafter = Heads(*source)
    return made


FACTORIES: dict[str, Factory] = {
    "ngram": NGram,
    "suffix": Suffix,
    "recycling": Recycling,
    "early-exit": early_exit,
    "quantized": quantized,
    "heads": heads,
}
"""Those that come with Forerun."""


def names() -> list[str]:
    """Every name that is known, other people's included."""
    return [*FACTORIES, *sorted({each.name for each in entry_points(group=GROUP)} - {*FACTORIES})]


def make_drafter(spec: str, load: Callable[[str], Any]) -> Drafter | None:
    """The drafter of that name; `load` finds the model for what is the name of none.

    `none` is None.  A plus between two makes a `Mixed` of them.
    """
    if spec == "none":
        return None
    parts = spec.split("+")
    made = [_one(part, load) for part in parts]
    return made[0] if len(made) == 1 else Mixed(*made)


def _one(spec: str, load: Callable[[str], Any]) -> Drafter:
    name, colon, argument = spec.partition(":")
    factory = _factory(name)
    if factory is None:
        if spec in ("", "none"):
            cure = f"Use {', '.join(names())}, or a model."
            raise InputError(explain("There is nothing to mix.", repr(spec), cure))
        return Model(load(spec))
    try:
        return factory(argument) if colon else factory()
    except ForerunError:
        raise
    except Exception as error:
        wrong = f"The drafter {name!r} cannot be made ({type(error).__name__}: {error})."
        cure = "Check what stands after the colon, if anything may."
        raise InputError(explain(wrong, repr(spec), cure)) from error


def _factory(name: str) -> Factory | None:
    if name in FACTORIES:
        return FACTORIES[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            found: Factory = entry.load()
            return found
    return None
