"""`import forerun` must cost little: no framework comes with it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "torch", "transformers", "jax", "triton", "matplotlib", "scipy", "numba", "safetensors",
    "llguidance",
)  # fmt: skip


def test_import_loads_no_framework() -> None:
    """In a process of its own, since this one may have loaded them for other tests."""
    code = f"import sys, forerun; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
