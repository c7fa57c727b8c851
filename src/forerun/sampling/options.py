"""Sampling options, and the function that applies them to a row of logits.

`law` turns the logits at a position into the distribution that plain decoding would sample there,
given the text so far *including the draft tokens before that position*. The engine calls it for
every position that a rule reads, so penalties, bans and grammars work inside a draft exactly as
they do outside.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from forerun.base.arrays import BLOCK, HostArray
from forerun.base.errors import InputError, explain, meant, shown, wrong_type
from forerun.grammars.base import Grammar, allowed_after


@dataclass(frozen=True)
class Law:
    """The distribution at a position, as scores (V,): weights are exp((score - best) /
    temperature).

    Sampling needs the weights of only a few tokens; computing all 50,000 exponentials would take
    longer than all other work. (top_p needs their total, so it does compute them all.)
    """

    scores: HostArray
    best: Any  # the largest score
    temperature: float = 1.0
    floor: float = -np.inf  # tokens with a lower score have weight 0

    def weigh(self, scores: HostArray) -> HostArray:
        """The weights of some of the scores: at most 1, and larger for larger scores."""
        with np.errstate(over="ignore"):  # a tiny temperature gives all but the best exp(-inf)
            weights = scores - self.best
            weights /= self.temperature
        np.exp(weights, out=weights)
        if self.floor > -np.inf:
            weights[scores < self.floor] = 0.0
        return np.asarray(weights)

    @property
    def weights(self) -> HostArray:
        """The weights of all tokens, (V,)."""
        return self.weigh(self.scores)


Class = TypeVar("Class")
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""The fields of `Sampling` that are real numbers."""

MOST_BIAS, MOST_PENALTY = 1e30, 1e4
"""The largest logit bias and the largest penalty. With larger ones, no model's logits could tell
tokens apart, and float32 ends at 3e38."""
MOST_COUNT = 1 << 62
"""The largest whole number, because devices receive such options in 64 bits."""

OF_GENERATE = ("max_new_tokens", "stop", "stop_tokens", "ignore_eos", "logprobs")
"""Options that belong to `generate` here, while other engines group them with the sampling
options."""
INSTEAD = {
    "do_sample": "Leave it out: temperature=0 is greedy, anything above samples.",
    "bias": "Write logit_bias={token id: bias}.",
    "max_tokens": "Pass max_new_tokens to generate.",
    "stop_token_ids": "Pass stop_tokens to generate.",
    **{name: f"Pass {name} to generate." for name in OF_GENERATE},
}
"""Advice for options that `Sampling` does not have, by name."""

Mask = Callable[[Sequence[int]], Any]
"""A grammar as a function from the tokens of the answer so far to the tokens that may come next.

It receives a list of token ids: the answer without the prompt, empty at first, with tokens given to
`resume` and drafted tokens that are being judged.  It returns a boolean row (V,), or the allowed
ids.  If it allows none, the request ends with an error, so allow an ending token where the text may
end.  It is called for several continuations of one text, in any order, so its answer may depend on
its argument only.  A `Grammar` becomes such a function, a `Cursor`, when a request is made.
"""


def _answers_unknown(cls: type[Class]) -> type[Class]:
    """A class decorator: an unknown option raises an InputError that says what to write instead."""
    make, known = cls.__init__, [option.name for option in fields(cls)]  # type: ignore[arg-type]

    @wraps(make)
    def made(self: Any, *values: Any, **options: Any) -> None:
        for name in options.keys() - {*known}:
            cure = f"Its options are {', '.join(known)}.{meant(name, known)}"
            wrong = f"{cls.__name__} has no option {name!r}."
            received = f"{name}={shown(options[name]):.40}"
            raise InputError(explain(wrong, received, INSTEAD.get(name, cure)))
        make(self, *values, **options)

    cls.__init__ = made  # type: ignore[method-assign]
    return cls


@_answers_unknown
@dataclass(frozen=True, repr=False)
class Sampling:
    """Sampling options. By default tokens are drawn from the model's distribution; temperature 0 is
    greedy.

    They apply in this order: bias, penalties, bans, grammar, processors, temperature, top_k, top_p,
    min_p. Until there are min_tokens tokens, neither an ending token nor a stop string ends the
    text. seed=None draws a seed, which the generation reports.
    """

    temperature: float = 1.0
    """Divides the scores; 0 is greedy."""
    top_k: int | None = None
    """Keep the k likeliest tokens; None keeps all."""
    top_p: float = 1.0
    """Keep the fewest likeliest tokens that have this share of the probability."""
    min_p: float = 0.0
    """Keep tokens that are at least this fraction as likely as the likeliest one."""
    repetition_penalty: float = 1.0
    """Applies to tokens of the prompt and the output, as in transformers; 1 is none."""
    presence_penalty: float = 0.0
    """Applies once to each token of the output, as in the OpenAI API."""
    frequency_penalty: float = 0.0
    """Applies for each time that a token is in the output, as in the OpenAI API."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Numbers to add to the logits of tokens, by token id."""
    bad_words: Sequence[str | Sequence[int]] = ()
    """Texts or token ids that must not be generated."""
    min_tokens: int = 0
    """Until there are this many tokens, nothing ends the text."""
    processors: Sequence[Any] = ()
    """`LogitsProcessor` objects of transformers; they are copied with their state."""
    grammar: Mask | Grammar | None = None
    """Restricts the output; `forerun.grammars` has json_schema, regex and lark."""
    n: int = 1
    """The number of samples for each prompt."""
    seed: int | None = None
    """Determines the text; None draws one, which the generation reports."""

    def __repr__(self) -> str:
        """The options that differ from the default."""
        usual: dict[str, Any] = {option.name: option.default for option in fields(self)}
        usual["logit_bias"] = {}
        shown = {name: value for name, value in vars(self).items() if value != usual[name]}
        return f"Sampling({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __post_init__(self) -> None:
        self._check_types()
        cure = "Use 0 for greedy, or a finite number above it."
        fine = _is_within(self.temperature, 0, sys.float_info.max)
        _check(fine, "temperature", self.temperature, cure)
        top_k = self.top_k is None or _is_count(self.top_k, 1)
        _check(top_k, "top_k", self.top_k, "Use 1 or more, or None to keep every token.")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "Use a number in (0, 1].")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "Use a number in [0, 1].")
        fine = _is_within(self.repetition_penalty, 1 / MOST_PENALTY, MOST_PENALTY)
        cure = f"Use a number from {1 / MOST_PENALTY:g} to {MOST_PENALTY:g}; 1 is none."
        _check(fine, "repetition_penalty", self.repetition_penalty, cure)
        cure = f"Use a number from {-MOST_BIAS:g} to {MOST_BIAS:g}"
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(_is_within(value, -MOST_BIAS, MOST_BIAS), name, value, f"{cure}; 0 is none.")
        for token, bias in self.logit_bias.items():
            fine = _is_within(bias, -MOST_BIAS, MOST_BIAS) or bias == -np.inf
            received = f"{shown(bias)} for token {shown(token)}"
            _check(fine, "logit_bias", received, f"{cure}, or -inf to forbid a token.")
        _check(_is_count(self.min_tokens, 0), "min_tokens", self.min_tokens, "Use 0 or more.")
        _check(_is_count(self.n, 1), "n", self.n, "Use 1 or more.")
        seed = self.seed is None or _is_count(self.seed, 0, (1 << 64) - 1)
        _check(seed, "seed", self.seed, "Use a whole number from 0 to 2**64 - 1.")
        empty = [word for word in self.bad_words if len(word) == 0]
        _check(not empty, "bad_words", list(self.bad_words), "Leave out the empty ones.")

    def _check_types(self) -> None:
        """Raise InputError for values of a wrong type, such as a number read from a file as
        text."""
        for name in NUMBERS:
            _check_type(name, getattr(self, name), Real, "Pass a number.")
        for name in ("min_tokens", "n"):
            _check_type(name, getattr(self, name), Integral, "Pass a whole number.")
        for name in ("top_k", "seed"):
            _check_type(name, getattr(self, name), Integral | None, "Pass a whole number, or None.")
        _check_type("logit_bias", self.logit_bias, Mapping, "Pass a dict, {token id: bias}.")
        for token, bias in self.logit_bias.items():
            _check_type("logit_bias", token, Integral, "Its keys are token ids.")
            _check_type("logit_bias", bias, Real, "Its values are numbers.")
        cure = "Pass a list of them, even for one."
        for name in ("bad_words", "processors"):
            value = getattr(self, name)
            _check_type(name, value, () if isinstance(value, str) else Sequence, cure)
        for word in self.bad_words:
            _check_type("bad_words", word, Sized, "Each is a text, or a list of token ids.")
        if self.grammar is not None:
            cure = (
                "Pass one of forerun.grammars, like json_schema(...), or a function from the "
                "tokens so far to those that may come next."
            )
            _check_type("grammar", self.grammar, Callable | Grammar, cure)


NOTHING_LEFT = (
    "no token is possible, because a grammar, bad words, min_tokens, a bias or a processor "
    "forbids every one. Loosen what forbids them."
)
NO_NUMBER = (
    "the logits hold {}, so the model is broken at this text. Check its weights, and load a "
    "float16 model in bfloat16 or float32."
)
TOO_LARGE = (
    "a bias or a penalty takes logits past what {} holds, although the model's are finite. Use a "
    "smaller one."
)


@dataclass(frozen=True)
class Bans:
    """The token ids that a request forbids: bad words, and ending tokens while the answer is too
    short."""

    words: tuple[tuple[int, ...], ...] = ()
    endings: tuple[int, ...] = ()


def law(
    sampling: Sampling,
    logits: HostArray,
    prompt: Sequence[int],
    output: Sequence[int],
    bans: Bans,
    processors: Sequence[Any] = (),
) -> Law:
    """The law of the token that follows prompt + output, from the logits (V,) at that position.

    processors: copies of the request's; calling them changes their state. Raises ValueError if no
    token is possible or a logit is NaN.
    """
    scores = _adjusted(sampling, logits, prompt, output, bans, processors)
    best = _best(scores, logits)
    if sampling.temperature == 0:
        greedy = np.full_like(scores, -np.inf)
        greedy[int(np.argmax(scores))] = best
        return Law(greedy, best)
    limits = np.finfo(scores.dtype)
    temperature = min(max(float(sampling.temperature), float(limits.tiny)), float(limits.max))
    floor = -np.inf
    if sampling.top_k is not None and sampling.top_k < len(scores):
        floor = _kth(scores, int(sampling.top_k))
    if sampling.top_p < 1:
        floor = _edge(Law(scores, best, temperature, floor), sampling.top_p)
    if sampling.min_p > 0:  # relative to the largest weight, which is 1
        least = float(best) + temperature * math.log(sampling.min_p)
        floor = max(floor, float(scores.dtype.type(max(least, float(limits.min)))))
    return Law(scores, best, temperature, floor)


def _best(scores: HostArray, logits: HostArray) -> Any:
    """The largest score; raises ValueError if no score is finite."""
    best = scores.max()
    if np.isfinite(best):
        return best
    given = logits.max()
    if np.isnan(given) or given == np.inf:
        raise ValueError(NO_NUMBER.format("NaN" if np.isnan(given) else "inf"))
    raise ValueError(NOTHING_LEFT if best == -np.inf else TOO_LARGE.format(scores.dtype))


def _kth(scores: HostArray, k: int) -> float:
    """The k-th largest score.

    It is at least the k-th largest of the blocks' maxima, so smaller scores are skipped.
    """
    whole = scores[: len(scores) // BLOCK * BLOCK].reshape(-1, BLOCK)
    if k <= len(whole):
        largest = whole.max(axis=1)
        scores = scores[scores >= np.partition(largest, -k)[-k]]
    return float(np.partition(scores, -k)[-k])


def _edge(law: Law, top_p: float) -> float:
    """The lowest score in the nucleus: the fewest likeliest tokens that together have top_p of the
    mass.

    All tokens with less than (1 - top_p) / V of the mass have less than 1 - top_p together, so none
    of them is in the nucleus, and only the others are sorted.
    """
    scores = law.scores if law.floor == -np.inf else law.scores[law.scores >= law.floor]
    weights = law.weigh(scores)
    total = weights.sum(dtype=np.float64)
    top = np.sort(scores[weights >= (1 - top_p) * total / len(weights)])[::-1]
    reached = np.cumsum(law.weigh(top), dtype=np.float64) >= top_p * total
    return float(top[int(np.argmax(reached))] if reached.any() else top[-1])


def _adjusted(
    sampling: Sampling,
    logits: HostArray,
    prompt: Sequence[int],
    output: Sequence[int],
    bans: Bans,
    processors: Sequence[Any],
) -> HostArray:
    """Scores (V,) after bias, penalties, bans, grammar and processors; `logits` stays unchanged."""
    scores = logits.astype(np.float32) if logits.dtype == np.float16 else logits
    if not (processors or _adjusts(sampling, bans)):
        return scores
    scores = scores.copy()
    if sampling.logit_bias:
        ids = np.fromiter(sampling.logit_bias, dtype=np.int64)
        scores[ids] += np.fromiter(sampling.logit_bias.values(), dtype=scores.dtype)
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.array([*prompt, *output], dtype=np.int64))
        seen_scores, penalty = scores[seen], float(sampling.repetition_penalty)
        with np.errstate(over="ignore"):  # `_best` says so
            scores[seen] = np.where(seen_scores < 0, seen_scores * penalty, seen_scores / penalty)
    if output and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(output)
        ids = np.fromiter(counts, dtype=np.int64)
        times = np.fromiter(counts.values(), dtype=scores.dtype)
        scores[ids] -= float(sampling.presence_penalty) + float(sampling.frequency_penalty) * times
    if len(output) < sampling.min_tokens and bans.endings:
        scores[list(bans.endings)] = -np.inf
    for word in bans.words:
        if _ends_with(prompt, output, word[:-1]):
            scores[word[-1]] = -np.inf
    if sampling.grammar is not None:
        scores[~allowed_after(sampling.grammar, output, len(scores))] = -np.inf
    if processors:
        _best(scores, logits)  # raises for errors that are not the fault of processors
        return _processed(processors, scores, prompt, output)
    return scores


def _adjusts(sampling: Sampling, bans: Bans) -> bool:
    """Whether a request's options may change scores, so that logits must be copied first."""
    return bool(
        sampling.logit_bias
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.min_tokens
        or bans.words
        or sampling.grammar is not None
    )


def _ends_with(prompt: Sequence[int], output: Sequence[int], word: tuple[int, ...]) -> bool:
    """Whether prompt + output ends with the tokens of a word."""
    if not word:
        return True
    tail = (*prompt[-len(word) :], *output)[-len(word) :]
    return tuple(tail) == word


def _processed(
    processors: Sequence[Any], scores: HostArray, prompt: Sequence[int], output: Sequence[int]
) -> HostArray:
    """Scores (V,) after transformers' logits processors, which work on batches of tensors."""
    import torch

    ids = torch.tensor([[*prompt, *output]])
    processed = made = torch.from_numpy(scores)[None, :]
    dtype, shape = made.dtype, made.shape
    for processor in processors:
        processed, wrong = processor(ids, processed), ""
        if not isinstance(processed, torch.Tensor) or not processed.is_floating_point():
            wrong = "returned no tensor of scores."
            received = shown(getattr(processed, "dtype", type(processed)))
        elif processed.shape != shape:
            wrong, received = "returned scores of a wrong shape.", f"{[*processed.shape]}"
        else:
            made = processed.detach().to("cpu", dtype)
            if not bool((made < torch.inf).all()):  # NaN is not smaller either
                wrong, received = f"returned scores that are no numbers in {dtype}.", "NaN or inf"
        if wrong:
            cure = f"Its scores must be of shape {[*shape]}, finite or -inf."
            raise InputError(explain(f"{type(processor).__name__} {wrong}", received, cure))
    return np.asarray(made[0].numpy())


def _is_count(value: object, least: int, most: int = MOST_COUNT) -> bool:
    return isinstance(value, int | np.integer) and least <= int(value) <= most


def _is_within(value: float, least: float, most: float) -> bool:
    """Whether a number of any type lies between two; NaN does not."""
    try:
        return least <= float(value) <= most
    except OverflowError:  # a whole number or a fraction past any float
        return False


def _check(fine: bool, name: str, value: object, cure: str) -> None:
    if not fine:
        raise InputError(explain(f"{name} is out of range.", value, cure))


def _check_type(name: str, value: object, kind: Any, cure: str) -> None:
    if not isinstance(value, kind):
        raise wrong_type(name, value, cure)
