"""Computes log-probabilities of a prompt's own tokens, for `echo` with `logprobs`.

Engines do not compute these when they read prompts. So a separate row of the model computes them, a
few tokens at a time, with pauses while engines are working.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forerun.base.arrays import to_numpy
from forerun.engine.request import token_logprob
from forerun.engine.results import TokenLogprob
from forerun.models.base import LanguageModel

PART = 32
"""The tokens in one pass. It is short, because it delays the rounds of engines that run beside
it."""


class LeftError(Exception):
    """The client has disconnected, so nobody needs the result."""


def prompt_logprobs(
    target: LanguageModel,
    tokens: Sequence[int],
    num_top: int,
    *,
    is_busy: Callable[[], bool] = lambda: False,
    has_left: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob]:
    """The log-probabilities of all tokens except the first.

    is_busy: whether engines are working; then half of the time is left to them.
    has_left: whether the client has disconnected; then `LeftError` is raised.
    """
    state = target.start(1, len(tokens))
    logprobs: list[TokenLogprob] = []
    for start in range(0, len(tokens) - 1, PART):
        if has_left():
            raise LeftError
        begin = time.perf_counter()
        following = tokens[start + 1 : start + PART + 1]
        fed = list(tokens[state.lengths[0] : start + len(following)])
        logits = to_numpy(target.score(state, [0], [fed], [len(following)]))[0]  # (N, V)
        target.commit(state, [0], [len(fed)])
        logprobs += [
            token_logprob(token, row, num_top) for token, row in zip(following, logits, strict=True)
        ]
        if is_busy():
            time.sleep(time.perf_counter() - begin)
    target.release(state, 0)
    return logprobs
