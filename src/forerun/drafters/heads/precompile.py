"""Compiles the drafter's pass for all sizes, in the process that `lean/compiler.py` starts."""

from __future__ import annotations

import numpy as np
from numba import typeof

from forerun.drafters.heads.design import Design
from forerun.drafters.heads.lean_runner import LeanRunner
from forerun.lean.crew import new_board
from forerun.lean.heads_pass import draft
from forerun.lean.held import type_of_held

SMALL = Design(
    hidden_size=32, num_heads=2, num_kv_heads=1, head_size=16, mlp_size=32, layers=(0,),
    num_tokens=32, rope_theta=1e4, norm_eps=1e-5,
)  # fmt: skip


def compile_draft() -> None:
    """Compile the pass. A small runner serves as example, because the argument types are always the
    same."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in SMALL.shapes.items()}
    runner = LeanRunner(SMALL, weights, np.zeros((1, SMALL.hidden_size), np.float32), 1)
    board = new_board(1, 1)
    draft.compile((typeof(board), type_of_held(runner.some_arguments())))  # type: ignore[attr-defined]
