"""What Triton makes of a product with weights of few bits, which no interpreter shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.backends.nvidia")

PROGRAM = Path(__file__).with_name("compiling.py")
NARROW = [
    ["float4, groups", "int6, scales in multiples"],
    pytest.param(
        ["int4, groups with zeros", "int4, scales and offsets in multiples"], marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("names", NARROW)
def test_narrow_products_keep_the_order_of_inputs(names: list[str]) -> None:
    """As wide ones do, which have two inputs side by side; and weights, made where the product
    reads them, are not moved.  So does attention to keys of 8 bits, to few and to many queries."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *names],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["side by side"] for one in found.pop("keys")] == [[2], [2]]
    expected = [{"side by side": [2], "moved": 0}] * 4  # a product, and three with experts
    assert found == dict.fromkeys(names, expected)
