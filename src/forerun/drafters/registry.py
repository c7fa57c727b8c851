"""Finds drafters by their names on the command line: `name`, `name:argument`, or a model's name.

Other packages add drafters by entry points of the group `forerun.drafters`: a callable that makes
the drafter, and is given the text after the colon if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from forerun.base.errors import ForerunError, InputError, explain, meant
from forerun.drafters.base import Drafter
from forerun.drafters.model import Model
from forerun.drafters.ngram import NGram
from forerun.drafters.suffix import Suffix
from forerun.drafters.verbs import check_verbs
from forerun.models.adapter import as_model

GROUP = "forerun.drafters"
Factory = Callable[..., Drafter]


def early_exit(num_layers: str = "") -> Drafter:
    """Make the drafter `early-exit`; its argument is a number of layers."""
    from forerun.drafters.early_exit import EarlyExit

    if num_layers and not num_layers.isdigit():
        cure = "Say how many layers draft, for example early-exit:12, or leave the number out."
        raise InputError(explain("early-exit needs a number.", repr(num_layers), cure))
    return EarlyExit(int(num_layers) if num_layers else None)


def quantized(bits: Any = "int8") -> Drafter:
    """Make the drafter `quantized`; its argument is the number of bits."""
    from forerun.drafters.quantized import Quantized

    return Quantized(bits)


def heads(*source: str) -> Drafter:
    """Make the drafter `heads`; its argument is a folder or a hub name, by default the shipped
    drafter."""
    from forerun.drafters.heads import Heads

    made: Drafter = Heads(*source)
    return made


def eagle3(source: str = "") -> Drafter:
    """Make the drafter `eagle3`; its argument is the folder or hub name of a published head."""
    from forerun.drafters.folders import description_of, find, kind_of, refuse
    from forerun.drafters.heads import Heads

    if not source:
        cure = "Name a folder or a hub name, for example eagle3:./my-head."
        raise InputError(explain("eagle3 needs the folder of a head.", "nothing", cure))
    folder = find(source)
    if (kind := kind_of(folder, description_of(folder))) != "eagle3":
        refuse(folder, kind, "an EAGLE-3 head")
    made: Drafter = Heads(source)
    return made


def block(source: str = "") -> Drafter:
    """Make the drafter `block`; its argument is the folder or hub name of a network that guesses
    blocks."""
    from forerun.drafters.block import Block

    if not source:
        cure = "Name a folder or a hub name, for example dflash:./my-draft-model."
        raise InputError(explain("A block drafter needs a folder.", "nothing", cure))
    made: Drafter = Block(source)
    return made


def medusa(source: str = "") -> Drafter:
    """Make the drafter `medusa`; its argument is the folder or hub name of its heads."""
    from forerun.drafters.medusa import Medusa

    if not source:
        cure = "Name a folder or a hub name, for example medusa:./my-heads."
        raise InputError(explain("medusa needs the folder of its heads.", "nothing", cure))
    made: Drafter = Medusa(source)
    return made


def mtp(*source: str) -> Drafter:
    """Make the drafter `mtp`; its argument is a folder or a hub name, by default the target's
    files."""
    from forerun.drafters.mtp import MTP

    made: Drafter = MTP(*source)
    return made


def through_text(model: Any = "") -> Drafter:
    """Make the drafter `through-text`; its argument is a model with another tokenizer."""
    from forerun.drafters.through_text import ThroughText

    if model == "":
        cure = "Name a model, for example through-text:./small-model."
        raise InputError(explain("through-text needs a model.", "nothing", cure))
    return ThroughText(model)


FACTORIES: dict[str, Factory] = {
    "ngram": NGram,
    "suffix": Suffix,
    "early-exit": early_exit,
    "quantized": quantized,
    "heads": heads,
    "eagle3": eagle3,
    "block": block,
    "dflash": block,
    "medusa": medusa,
    "mtp": mtp,
    "through-text": through_text,
}
"""The drafters that come with Forerun, by name."""

WITHOUT_ARGUMENT = {"ngram": "NGram(max_n=3)", "suffix": "Suffix()"}
"""The drafters whose names take nothing after a colon, and how they are made in Python."""


def names() -> list[str]:
    """The names of all drafters, those of other packages included."""
    return [*FACTORIES, *sorted({entry.name for entry in entry_points(group=GROUP)} - {*FACTORIES})]


def make_one(spec: str, load: Callable[[str], Any] = as_model) -> Drafter:
    """Make the drafter with this single name (without a plus)."""
    name, colon, argument = spec.partition(":")
    factory = _factory(name)
    if factory is None:
        if spec in ("", "none"):
            cure = f"Use {', '.join(names())}, or a model."
            raise InputError(explain("There is nothing to mix.", repr(spec), cure))
        return Model(_load(spec, load))
    if colon and name in WITHOUT_ARGUMENT:
        wrong = f"{name} takes nothing after a colon."
        cure = f"Write {name}; its options are for Python: {WITHOUT_ARGUMENT[name]}."
        raise InputError(explain(wrong, repr(spec), cure))
    given = load(argument) if name == "through-text" and argument else argument
    try:
        made = factory(given) if colon else factory()
        check_verbs(made)
        return made
    except ForerunError:
        raise
    except Exception as error:
        wrong = f"The drafter {name!r} cannot be made ({type(error).__name__}: {error})."
        cure = "Check what stands after the colon, if anything may."
        raise InputError(explain(wrong, repr(spec), cure)) from error


def _load(name: str, load: Callable[[str], Any]) -> Any:
    """Load the model with this name. A name that cannot be a model's is reported as an unknown
    drafter."""
    is_path = "/" in name or Path(name).is_dir()
    question = "" if is_path else meant(name, names())
    wrong = "There is no drafter of that name, and no model."
    cure = f"Use {', '.join(names())}; or a model by its hub name or folder.{question}"
    if question:  # a slip: nothing is loaded to find that out
        raise InputError(explain(wrong, repr(name), cure))
    try:
        return load(name)
    except InputError as error:
        if is_path:
            raise
        raise InputError(explain(wrong, repr(name), cure)) from error


def _factory(name: str) -> Factory | None:
    if name in FACTORIES:
        return FACTORIES[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            factory: Factory = entry.load()
            return factory
    return None
