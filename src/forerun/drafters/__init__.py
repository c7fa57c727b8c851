"""Drafters: they guess the next tokens of a text. One idea per file."""

from forerun.drafters.base import Drafter, Guess, Outcome, Turn
from forerun.drafters.block import Block
from forerun.drafters.early_exit import EarlyExit
from forerun.drafters.forced import Forced
from forerun.drafters.growing import GrowingTree
from forerun.drafters.heads import Heads
from forerun.drafters.medusa import Medusa
from forerun.drafters.mixed import Mixed
from forerun.drafters.model import Model
from forerun.drafters.mtp import MTP
from forerun.drafters.ngram import NGram
from forerun.drafters.quantized import Quantized
from forerun.drafters.suffix import Suffix
from forerun.drafters.through_text import ThroughText

__all__ = [
    "MTP",
    "Block",
    "Drafter",
    "EarlyExit",
    "Forced",
    "GrowingTree",
    "Guess",
    "Heads",
    "Medusa",
    "Mixed",
    "Model",
    "NGram",
    "Outcome",
    "Quantized",
    "Suffix",
    "ThroughText",
    "Turn",
]


def __dir__() -> list[str]:
    """The public names of this package."""
    return __all__
