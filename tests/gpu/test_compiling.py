"""What Triton makes of a product with weights of few bits, which no interpreter shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.backends.nvidia")

import forerun

PROGRAM = Path(__file__).with_name("compiling.py")
NARROW = [
    ["float4, groups", "int6, scales in multiples"],
    pytest.param(
        ["int4, groups with zeros", "int4, scales and offsets in multiples"], marks=pytest.mark.slow
    ),
]
WAITED_FOR = "int4, scales and offsets in multiples"
"""As Q4_K: in words of 32 bits, what its multiples are of would take 6% more memory."""


def run(program: Path, *names: str) -> Any:
    """A program that ends well, without the interpreter."""
    done = subprocess.run(
        [sys.executable, str(program), *names],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("names", NARROW)
def test_narrow_products_keep_the_order_of_inputs(names: list[str]) -> None:
    """As wide ones do, which have two inputs side by side; and weights, made where the product
    reads them, are not moved, and all that they are made of is copied ahead.  So does attention to
    keys of 8 bits, to few and to many queries."""
    found = json.loads(run(PROGRAM, *names).stdout)
    assert [one["side by side"] for one in found.pop("keys")] == [[2], [2]]
    assert set(found) == set(names)
    for name, products in found.items():
        assert len(products) == 4  # three of them with experts
        assert all((one["side by side"], one["moved"]) == ([2], 0) for one in products)
        if name != WAITED_FOR:
            assert not any(one["waits"] for one in products)


@pytest.mark.parametrize("how", ["brief", pytest.param("whole", marks=pytest.mark.slow)])
def test_every_kernel_has_types_as_it_is_launched(how: str) -> None:
    """A name that a condition or a loop gives another type is no fault to the interpreter."""
    found = json.loads(run(PROGRAM.with_name("front_end.py"), how).stdout)
    assert found["failed"] == {}
    source = Path(forerun.__file__).parent
    kernels = {
        name
        for folder in ("gpu/kernels", "kernels/triton")
        for path in (source / folder).glob("*.py")
        for name in re.findall(r"@triton\.jit.*\ndef (\w+)\(", path.read_text())
    }
    launched = {
        name
        for folder in ("gpu", "gpu_rounds", "kernels")
        for path in (source / folder).glob("*.py")
        for name in re.findall(r"(\w+)\[.*\]\(", path.read_text())
    }
    assert set(found["met"]) == kernels & launched
