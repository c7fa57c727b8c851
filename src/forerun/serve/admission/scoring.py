"""Log-probabilities of a prompt's own tokens, for `echo` with `logprobs`.

An engine reads prompts without looking at their logits.  These are computed beside the engines, in
a row of their own and a few tokens at a time, with pauses while others are being answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forerun.base.arrays import to_numpy
from forerun.engine.request import token_logprob
from forerun.engine.results import TokenLogprob
from forerun.models.base import LanguageModel

PART = 32
"""Tokens in a pass: it slows the rounds of engines that run beside it."""


class LeftError(Exception):
    """The client has gone, so nobody needs the rest."""


def prompt_logprobs(
    target: LanguageModel,
    tokens: Sequence[int],
    num_top: int,
    *,
    is_busy: Callable[[], bool] = lambda: False,
    has_left: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob]:
    """The log-probabilities of all tokens but the first, which nothing precedes.

    is_busy: whether engines are at work; then half of the time is left to them.
    has_left: whether nobody waits for the result any more; raises `LeftError` then.
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
