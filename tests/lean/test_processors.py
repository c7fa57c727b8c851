"""The same results on processors with narrower vectors, as far as this one can play them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from forerun.lean.shape import HAS_DOT_PRODUCTS

X86 = {
    "haswell": "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
    "generic": "",  # not even an instruction for float16
}


def run_tests(environment: dict[str, str], folder: Path) -> None:
    """Those of the inner loop and of whole passes, in a process that compiles anew."""
    environment = {**os.environ, **environment, "NUMBA_CACHE_DIR": str(folder)}
    names = ("test_tile.py", "test_limbs.py", "test_trees.py")
    files = [str(Path(__file__).with_name(name)) for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parents[2])


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="plays x86 processors")
@pytest.mark.parametrize("processor", X86)
def test_the_inner_loop_on_other_processors(processor: str, tmp_path: Path) -> None:
    run_tests({"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": X86[processor]}, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_DOT_PRODUCTS, reason="floats are multiplied anyway")
def test_the_inner_loop_without_dot_products(tmp_path: Path) -> None:
    run_tests({"FORERUN_DOT_PRODUCTS": "0"}, tmp_path)
