"""How much the later steps of an unrolled draft count in training.

A chain of guesses gets to step j only if all guesses before it were right, and they are right more
often where the text is easy.
"""

from __future__ import annotations

from typing import NamedTuple


class StepWeights(NamedTuple):
    """Step j counts decay^j where the guesses before it were right, elsewhere `least` of that."""

    decay: float
    least: float


STEP_WEIGHTS = {"fading": StepWeights(0.8, 1.0), "reached": StepWeights(0.9, 0.2)}
