"""Forerun: speculative decoding that keeps the target's distribution, and proves it."""

from forerun import rules as rules
from forerun import theory as theory
from forerun.certification import Certificate as Certificate
from forerun.certification import certify as certify
from forerun.errors import ForerunError as ForerunError
from forerun.errors import InputError as InputError
from forerun.errors import MissingExtraError as MissingExtraError
from forerun.errors import UnsupportedError as UnsupportedError
from forerun.law import law as law
from forerun.law import target_law as target_law
from forerun.plan import replay as replay
from forerun.plan import simulate as simulate
from forerun.types import Draft as Draft
from forerun.types import Sparse as Sparse
from forerun.types import Verdict as Verdict
from forerun.verification import verify as verify
from forerun.version import __version__ as __version__
