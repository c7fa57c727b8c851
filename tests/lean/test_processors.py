"""The same results on processors with other vectors and instructions, as this one can play them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from llvmlite import binding

from forerun.lean.dots import MADD_256, VNNI_256, VNNI_512, Dots, plain
from forerun.lean.shape import HAS_DOT_PRODUCTS, Shape

AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2"
X86 = {  # a name that LLVM knows, and features
    "vnni256": ("haswell", f"{AVX2},+avxvnni"),
    "madd512": ("haswell", f"{AVX2},+avx512f,+avx512bw"),
    "madd256": ("haswell", AVX2),
    "generic": ("generic", ""),  # not even an instruction for float16
}
PLAYED = {VNNI_512: Shape(32, 8), VNNI_256: Shape(16, 6), MADD_256: Shape(16, 6)}
# What the package's other modules read when they are imported.
PLAY = """
import sys
import pytest
from forerun.lean import shape
shape.DOT_PRODUCTS, shape.HAS_DOT_PRODUCTS = sys.argv[1], True
shape.LANES, shape.TOKENS = map(int, sys.argv[2:4])
sys.exit(pytest.main(["-m", "not slow", *sys.argv[4:]]))
"""


def run_tests(environment: dict[str, str], folder: Path, *start: str) -> None:
    """Those of the inner loop and of whole passes, in a process that compiles anew."""
    environment = {**os.environ, **environment, "NUMBA_CACHE_DIR": str(folder)}
    names = ("test_tile.py", "test_limbs.py", "test_trees.py")
    files = [str(Path(__file__).with_name(name)) for name in names]
    start = start or ("-m", "pytest")
    command = [sys.executable, *start, "-q", "-p", "no:cacheprovider", *files]
    subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parents[2])


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="plays x86 processors")
@pytest.mark.parametrize("kind", X86)
def test_the_inner_loop_on_other_processors(kind: str, tmp_path: Path) -> None:
    processor, features = X86[kind]
    here = binding.get_host_cpu_features()
    missing = [name for name in features.split(",") if name and not here.get(name[1:])]
    if missing:
        pytest.skip(f"this processor has no {', '.join(missing)}")
    run_tests({"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dots", PLAYED, ids=lambda dots: dots.name)
def test_whole_passes_in_the_layout_of_x86(dots: Dots, tmp_path: Path) -> None:
    run_tests({}, tmp_path, "-c", PLAY, plain(dots).name, *map(str, PLAYED[dots]))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_DOT_PRODUCTS, reason="this processor has no products of bytes")
def test_the_inner_loop_without_dot_products(tmp_path: Path) -> None:
    run_tests({"FORERUN_DOT_PRODUCTS": "0"}, tmp_path)
