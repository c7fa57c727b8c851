"""A target under both passes, for drafters that bring a runner for each."""

from __future__ import annotations

from typing import Any

import pytest

import forerun as fr


@pytest.fixture(params=["plain", "lean"])
def target(request: pytest.FixtureRequest) -> Any:
    """The tiny Llama of seed 3, under transformers or the lean CPU pass."""
    from tiny_heads import tiny_llama  # torch, which tests without it need not wait for

    if request.param == "plain":
        return fr.wrap(tiny_llama(seed=3))
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(tiny_llama(seed=3))
