"""The public names of the package, which `forerun` offers as its own."""

from forerun import drafters, grammars, models, rules, theory
from forerun.audit import Report, audit
from forerun.base.errors import (
    EngineFullError,
    ForerunError,
    GenerationError,
    InputError,
    MissingExtraError,
    UnsupportedError,
)
from forerun.base.version import __version__
from forerun.doctor.checkup import Checkup, doctor
from forerun.engine.results import Fate, Generation, Piece, Stats, TokenLogprob
from forerun.forecast import replay, simulate
from forerun.generation.answer import Answer
from forerun.generation.async_engine import AsyncEngine
from forerun.generation.generate import Stream, generate, stream
from forerun.loading.load import load, wrap
from forerun.measure.planner import plan
from forerun.measure.probe import probe
from forerun.measure.sweep import sweep
from forerun.proof import Certificate, certify
from forerun.proof.law import law, target_law
from forerun.rules.types import Draft, Sparse, Verdict
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree
from forerun.verification import verify

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
