"""Drafters, one idea per file."""

from forerun.drafters.base import Drafter as Drafter
from forerun.drafters.base import Guess as Guess
from forerun.drafters.base import Outcome as Outcome
from forerun.drafters.base import Turn as Turn
from forerun.drafters.model import Model as Model
from forerun.drafters.ngram import NGram as NGram
from forerun.drafters.through_text import ThroughText as ThroughText
