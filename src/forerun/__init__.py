"""Forerun: speculative decoding that keeps the target's distribution, and proves it."""

from forerun import drafters as drafters
from forerun import rules as rules
from forerun import theory as theory
from forerun.certification import Certificate as Certificate
from forerun.certification import certify as certify
from forerun.engine.generate import generate as generate
from forerun.engine.generate import stream as stream
from forerun.engine.results import Fate as Fate
from forerun.engine.results import Generation as Generation
from forerun.engine.results import Piece as Piece
from forerun.errors import ForerunError as ForerunError
from forerun.errors import InputError as InputError
from forerun.errors import MissingExtraError as MissingExtraError
from forerun.errors import UnsupportedError as UnsupportedError
from forerun.law import law as law
from forerun.law import target_law as target_law
from forerun.models.load import load as load
from forerun.models.load import wrap as wrap
from forerun.plan import replay as replay
from forerun.plan import simulate as simulate
from forerun.sampling import Sampling as Sampling
from forerun.types import Draft as Draft
from forerun.types import Sparse as Sparse
from forerun.types import Verdict as Verdict
from forerun.verification import verify as verify
from forerun.version import __version__ as __version__
