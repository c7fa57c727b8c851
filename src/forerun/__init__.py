"""Forerun: speculative decoding that keeps the target's distribution, and proves it."""

from importlib import import_module, reload
from importlib.util import find_spec
from sys import modules
from threading import RLock
from typing import TYPE_CHECKING

import forerun.base.ctrl_c as ctrl_c  # first, because the others take a second

IS_RELOADED = "__getattr__" in globals()
"""True when this file runs for a second time, which happens if the `forerun` command itself is
asked for a public name."""

if TYPE_CHECKING or IS_RELOADED or not ctrl_c.is_command():
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
    from forerun.proof.certificate import Certificate
    from forerun.proof.certify import certify
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

    def __dir__() -> list[str]:
        """The names that are meant for others; the package's own modules are left out."""
        return __all__

else:  # the command answers sooner where a subcommand imports only what it needs
    _reading = RLock()

    def __getattr__(name: str) -> object:
        """A part of the package, imported when it is first asked for; the first public name that
        is asked for imports all of them."""
        if find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        with _reading:  # another thread may just be importing them
            if "__all__" not in globals():
                reload(modules[__name__])
        if name not in globals():
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return globals()[name]


ctrl_c.end()
