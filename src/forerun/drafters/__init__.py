"""Drafters, one idea per file."""

from forerun.drafters.base import Drafter as Drafter
from forerun.drafters.base import Guess as Guess
from forerun.drafters.base import Outcome as Outcome
from forerun.drafters.base import Turn as Turn
from forerun.drafters.early_exit import EarlyExit as EarlyExit
from forerun.drafters.forced import Forced as Forced
from forerun.drafters.heads import Heads as Heads
from forerun.drafters.mixed import Mixed as Mixed
from forerun.drafters.model import Model as Model
from forerun.drafters.ngram import NGram as NGram
from forerun.drafters.quantized import Quantized as Quantized
from forerun.drafters.recycling import Recycling as Recycling
from forerun.drafters.suffix import Suffix as Suffix
from forerun.drafters.through_text import ThroughText as ThroughText
