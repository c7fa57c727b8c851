"""Whether to use the lean pass for a model: it must fit, agree and be faster, on this machine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from forerun.errors import UnsupportedError, explain
from forerun.lean.model import LeanModel
from forerun.lean.weights import unfit
from forerun.models.agreement import Probe
from forerun.models.forward import Forward

NUM_TOKENS = (1, 4)  # a plain step and a short draft
REPEATS = 2


def choose(plain: Any, lean: bool | Literal["auto"] = "auto") -> Any:
    """`plain`, a `HuggingFaceModel`, or its `LeanModel`.

    With `lean="auto"` the lean pass is taken where it fits the model, reproduces it, and was just
    measured to be faster; with True it is taken or refused with the reason.
    """
    if lean is False or (lean == "auto" and unfit(plain.model)):
        return plain
    forward = Forward(plain.model)
    try:
        candidate = LeanModel(plain.model, plain.tokenizer)
        with torch.inference_mode():
            probe = Probe(forward, plain.vocab_size)
            reproduces = probe.agrees_with(candidate.start(2, 16))
            is_chosen = reproduces and (lean is True or is_faster(candidate, forward))
    except Exception as error:  # of the compiler on a processor it does not know, or no memory
        if lean is True:
            raise
        warnings.warn(f"The lean CPU pass is not used: {error}", stacklevel=4)
        return plain
    if lean is True and not reproduces:
        raise UnsupportedError(
            explain(
                "The lean CPU pass does not reproduce this model.",
                type(plain.model).__name__,
                "Use lean=False, and please report the model.",
            )
        )
    candidate.name = plain.name
    return candidate if is_chosen else plain


def rounded(plain: Any) -> LeanModel:
    """The model with its weights in 8 bits, once the exact one has been seen to be reproduced."""
    choose(plain, lean=True)
    candidate = LeanModel(plain.model, plain.tokenizer, int8=True)
    candidate.name = f"{plain.name}-int8"
    return candidate


def is_faster(candidate: LeanModel, forward: Forward) -> bool:
    """Whether short passes take less time than the model's own, each at its best of a few tries.

    Both are warm: the probe has just run them.
    """
    state = candidate.start(1, 16)
    ours = theirs = 0.0
    for count in NUM_TOKENS:
        tokens = list(range(count))
        ours += best(partial(candidate.score, state, [0], [tokens], [count]))
        theirs += best(partial(forward, forward.tokens(tokens), count, use_cache=False))
    return ours < theirs


def best(run: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
