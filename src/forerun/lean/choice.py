"""Whether to use the lean pass for a model: it must fit, agree and be faster, on this machine."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch

from forerun.errors import UnsupportedError, explain
from forerun.lean.model import LeanModel
from forerun.lean.weights import unfit
from forerun.models.agreement import Probe
from forerun.models.base import LanguageModel
from forerun.models.forward import Forward

NUM_TOKENS = (1, 4)  # a plain step and a short draft
REPEATS = 3


def choose(plain: Any, lean: bool | Literal["auto"] = "auto") -> Any:
    """`plain`, a `HuggingFaceModel`, or its `LeanModel`.

    With `lean="auto"` the lean pass is taken where it fits the model, reproduces it, and was just
    measured to be faster; with True it is taken or refused with the reason.
    """
    if lean is False or (lean == "auto" and unfit(plain.model)):
        return plain
    candidate = LeanModel(plain.model, plain.tokenizer)
    candidate.name = plain.name
    if not reproduces(candidate, plain):
        if lean == "auto":
            return plain
        raise UnsupportedError(
            explain(
                "The lean CPU pass does not reproduce this model.",
                type(plain.model).__name__,
                "Use lean=False, and please report the model.",
            )
        )
    return candidate if lean is True or is_faster(candidate, plain) else plain


def reproduces(candidate: LeanModel, plain: Any) -> bool:
    """Whether ragged rows with refused tokens score like fresh passes of the model itself."""
    with torch.inference_mode():
        probe = Probe(Forward(plain.model), plain.vocab_size)
        return probe.agrees_with(candidate.start(2, 16))


def is_faster(candidate: LanguageModel, other: LanguageModel) -> bool:
    """Whether passes of a few tokens take less time, each at its best of a few tries."""
    models = (candidate, other)
    states = [model.start(1, 16) for model in models]
    best = [0.0, 0.0]
    for count in NUM_TOKENS:
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(REPEATS + 1):  # the first compiles, allocates and warms up
            for index, (model, state) in enumerate(zip(models, states, strict=True)):
                began = time.perf_counter()
                model.score(state, [0], [list(range(count))], [count])
                times[index].append(time.perf_counter() - began)
                model.release(state, 0)
        best = [total + min(own[1:]) for total, own in zip(best, times, strict=True)]
    return best[0] < best[1]
