"""Forerun: speculative decoding that keeps the target's distribution, and proves it."""

import forerun.starting as starting  # first, because the others take a second
from forerun import drafters, grammars, models, rules, theory
from forerun.audit import Report, audit
from forerun.certification import Certificate, certify
from forerun.checkup import Checkup, doctor
from forerun.engine.answer import Answer
from forerun.engine.async_engine import AsyncEngine
from forerun.engine.generate import Stream, generate, stream
from forerun.engine.results import Fate, Generation, Piece, Stats, TokenLogprob
from forerun.errors import (
    EngineFullError,
    ForerunError,
    GenerationError,
    InputError,
    MissingExtraError,
    UnsupportedError,
)
from forerun.forecast import replay, simulate
from forerun.law import law, target_law
from forerun.measure.planner import plan
from forerun.measure.probe import probe
from forerun.measure.sweep import sweep
from forerun.models.load import load, wrap
from forerun.sampling import Sampling
from forerun.tree import Tree
from forerun.types import Draft, Sparse, Verdict
from forerun.verification import verify
from forerun.version import __version__

__all__ = [
    "Answer",
    "AsyncEngine",
    "Certificate",
    "Checkup",
    "Draft",
    "EngineFullError",
    "Fate",
    "ForerunError",
    "Generation",
    "GenerationError",
    "InputError",
    "MissingExtraError",
    "Piece",
    "Report",
    "Sampling",
    "Sparse",
    "Stats",
    "Stream",
    "TokenLogprob",
    "Tree",
    "UnsupportedError",
    "Verdict",
    "__version__",
    "audit",
    "certify",
    "doctor",
    "drafters",
    "generate",
    "grammars",
    "law",
    "load",
    "models",
    "plan",
    "probe",
    "replay",
    "rules",
    "simulate",
    "stream",
    "sweep",
    "target_law",
    "theory",
    "verify",
    "wrap",
]

starting.end()


def __dir__() -> list[str]:
    """The names that are meant for others; the package's own modules are left out."""
    return __all__
