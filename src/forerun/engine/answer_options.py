"""The options of one answer: one frozen value for `generate`, `AsyncEngine`, batch and server."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args

import numpy as np

from forerun.base.errors import InputError, explain, shown, wrong_type
from forerun.engine.results import LogprobsOf
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling

GREEDY = Sampling(temperature=0.0)
MOST = (1 << 31) - 1
"""The largest value of any count, because devices keep some counts in 32 bits."""
OPTIONAL = ("draft_length", "logprobs")
LEAST = {"draft_length": 0, "logprobs": 0, "batch_size": 1, "max_batch": 1, "max_waiting": 0}


@dataclass(frozen=True)
class AnswerOptions:
    """The options of one answer: everything a caller may ask for besides the prompt.

    Raises `InputError` for values that no model could honour. Values that depend on the model are
    checked when a request is made (`generation/intake.py`).

    stop: strings that end the text; one may be given alone.
    stop_tokens: ids that end the text, in addition to the model's own unless ignore_eos.
    logprobs: how many likeliest tokens are reported beside each token; None reports none.
    owner: requests of different owners learn nothing of each other.
    draft_length: guesses in a row at most; None and "auto" leave it to the engine.
    priority: requests with a higher one are served first.
    timeout: seconds after which the answer ends with the text it has.
    """

    sampling: Sampling = GREEDY
    max_new_tokens: int = 128
    stop: str | Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprobs_of: LogprobsOf = "model"
    owner: str = ""
    draft_length: DraftLength | None = None
    priority: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        length = "auto" if self.draft_length is None else self.draft_length
        check_choice("logprobs_of", self.logprobs_of, get_args(LogprobsOf))
        check_counts(length, logprobs=self.logprobs)
        _check_sampling(self.sampling)
        _check_limit(self.max_new_tokens)
        _check_timeout(self.timeout)
        _check_kind("priority", self.priority, int, "is no whole number.", "Use 0, 1, ...")
        _check_kind("owner", self.owner, str, "is no text.", "Use a name, or leave it out.")
        object.__setattr__(self, "stop", _stops(self.stop))


def check_counts(draft_length: DraftLength, **counts: int | None) -> None:
    """Refuse options that are not whole numbers, or are too small or too large. None means that an
    option was not given."""
    given = None if draft_length == "auto" else draft_length
    for name, value in {"draft_length": given, **counts}.items():
        also = ', or "auto"' if name == "draft_length" else ""
        cure = f"Use a whole number from {LEAST[name]} on{also}."
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, int):
            raise wrong_type(name, value, cure)
        if not LEAST[name] <= value <= MOST:
            raise InputError(explain(f"{name} is out of range.", value, cure))


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        cure = f"Use {' or '.join(map(repr, choices))}."
        raise InputError(explain(f"{name} is not known.", shown(value), cure))


def _check_kind(name: str, value: object, kind: type, fault: str, cure: str) -> None:
    if not isinstance(value, kind):
        raise InputError(explain(f"{name} {fault}", shown(value), cure))


def _check_sampling(value: Any) -> None:
    """Refuse sampling options that are not a `Sampling`. For a mapping, the error shows the same
    options as a `Sampling`."""
    if isinstance(value, Sampling):
        return
    cure = "Pass a forerun.Sampling, or one for each prompt."
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key}={option!r}" for key, option in value.items())
        cure = f"Write Sampling({inside})."
    raise wrong_type("sampling", value, cure)


def _check_limit(value: Any) -> None:
    """Refuse a max_new_tokens that is not a whole number, or is too small or too large."""
    if not isinstance(value, int | np.integer):
        is_whole = isinstance(value, float) and value.is_integer()
        like = f": {value:.0f}" if is_whole else ", or one for each prompt"
        raise wrong_type("max_new_tokens", value, f"Pass a whole number{like}.")
    if value > MOST:
        cure = f"Use {MOST} or fewer."
        raise InputError(explain("max_new_tokens is out of range.", value, cure))
    if value < 1:
        raise InputError(explain("max_new_tokens is too small.", value, "Use 1 or more."))


def _check_timeout(timeout: Any) -> None:
    """Refuse a timeout that is not a number of seconds above 0."""
    cure = "Pass the seconds that the request may take, or None."
    number: Any = Real
    if timeout is None:
        return
    if not isinstance(timeout, number):
        raise wrong_type("timeout", timeout, cure)
    if not timeout > 0:
        raise InputError(explain("The deadline has passed already.", timeout, cure))
    if sys.float_info.max < timeout < math.inf:
        raise InputError(explain("timeout is out of range.", timeout, cure))


def _stops(value: Any) -> tuple[str, ...]:
    """The strings that end a text, given as one or as several."""
    is_one = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    stops = (value,) if is_one else tuple(value)
    for stop in stops:
        if not isinstance(stop, str):
            is_token = isinstance(stop, int | np.integer)
            token_cure = f"For a token id, use stop_tokens=[{shown(stop)}]."
            cure = token_cure if is_token else "Pass strings."
            cure = "Decode bytes first, with bytes.decode()." if isinstance(stop, bytes) else cure
            raise InputError(explain("stop holds what is no text.", f"{shown(value):.80}", cure))
    if "" in stops:
        cure = "Leave it out, or pass the text that should end the answer."
        raise InputError(explain("A stop string is empty.", list(stops), cure))
    return stops
