"""Sampling conditions, and how each changes a law that is known only for its likeliest tokens.

One-token requests report the law without options. The law at another temperature, under a
truncation or with penalties can be computed from it, except for what the endpoint does not say:
which tokens are in the tail, how close calls at the edge of a truncation end, and which tokens of
the prompt count for penalties. So every probability gets an upper bound that an honest endpoint
does not exceed, and the bets of `evidence` are paid by that bound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.audit.bins import ROUNDING, Bins, Key
from forerun.audit.prompts import Prompt
from forerun.base.arrays import HostArray

SURELY_OUT = 1e-6
"""The upper bound given to the probability of a token that an option excludes, so that the token
can be bet on if it comes nevertheless."""
MANY = 1e6
"""The most times that a token may have occurred before, if nothing is known about it."""
BET_ON_OUT = 1e-3
"""The total probability that bets give to all excluded tokens."""
SHORT = 4
"""The length, in tokens, of texts with options. Short texts begin alike more often, so fewer laws
have to be requested, and the tokens that come at a place are learned sooner."""


@dataclass(frozen=True)
class Condition:
    """How texts are sampled: extra options, and the number of tokens requested."""

    name: str
    options: Mapping[str, float] = field(default_factory=dict)
    length: int = 8

    @property
    def has_penalties(self) -> bool:
        """Whether the law of a token depends on the tokens before it through penalties."""
        return any(name.endswith("_penalty") for name in self.options)

    @property
    def num_readings(self) -> int:
        """The number of ways in which honest servers interpret the options."""
        return 2 if self.has_penalties else 1

    @property
    def options_at_once(self) -> Mapping[str, float]:
        """The options that already affect the first token of an answer."""
        return {} if self.has_penalties else self.options

    def laws(self, plain: Bins, said: Sequence[Key], prompt: Prompt, slack: float) -> list[Bins]:
        """The law under each valid interpretation of the options. For penalties there are two:
        servers count only generated tokens, or those of the prompt too."""
        if not self.options:
            return [plain]
        readings: list[Prompt | None] = [None, prompt] if self.has_penalties else [None]
        return [changed(plain, self.options, said, reading, slack) for reading in readings]

    def slack(self, plain: float) -> float:
        """How far rounding may move a ratio of probabilities under this condition, if it moves
        those of the plain law by `plain`. A token's weight and the sum of all weights both move."""
        if not self.options:
            return plain
        power = 1 / self.options.get("temperature", 1.0)
        return float(((1 + plain) / (1 - plain)) ** power - 1)


CONDITIONS = (
    Condition("plain"),
    Condition("2 tokens", length=2),
    Condition("24 tokens", length=24),
    Condition("temperature 0.5", {"temperature": 0.5}, SHORT),
    Condition("temperature 1.8", {"temperature": 1.8}, SHORT),
    Condition("top_p 0.5", {"top_p": 0.5}, SHORT),
    Condition("top_p 0.7", {"top_p": 0.7}, SHORT),
    Condition("penalties", {"presence_penalty": 0.5, "frequency_penalty": 1.0}),
)
"""The conditions that are tested. Each has only one option, since servers differ in the order in
which they apply several."""


def changed(
    plain: Bins,
    options: Mapping[str, float],
    said: Sequence[Key] = (),
    prompt: Prompt | None = None,
    slack: float = 0.0,
) -> Bins:
    """The law under a temperature, one truncation, or penalties.

    said: the tokens generated before.
    prompt: given if penalties count its tokens too.
    slack: how far ratios of probabilities may be off; closer calls at the edge of a truncation are
    left open.
    """
    low, high = plain.chances.copy(), plain.most.copy()
    low[-1] = max(0.0, low[-1] - ROUNDING)
    least, most = _counts(plain, said, prompt)
    presence, frequency = (
        options.get(f"{name}_penalty", 0.0) for name in ("presence", "frequency")
    )
    if presence or frequency:
        high *= np.exp(-presence * (least > 0) - frequency * least)
        low *= np.exp(-presence * (most > 0) - frequency * most)
    is_in, is_out = _kept(plain, options, slack)
    if (power := 1 / options.get("temperature", 1.0)) != 1:
        low, high = low**power, high**power
        is_out[-1] = True  # its weight depends on how many tokens it is made of
    law = between(plain.keys, np.where(is_in & ~is_out, low, 0.0), np.where(is_out, 0.0, high))
    return replace(law, has_tail=power == 1)


def between(keys: Sequence[Key], low: HostArray, high: HostArray) -> Bins:
    """A law made from lower and upper bounds (B,) of its weights."""
    most = high / np.maximum(high + low.sum() - low, 1e-300)
    guess = (low + high) / (low + high).sum()
    is_out = high == 0
    if is_out.any():
        guess = np.where(is_out, BET_ON_OUT / is_out.sum(), (1 - BET_ON_OUT) * guess)
        most = np.maximum(most, SURELY_OUT)
    order = [*np.argsort(-guess[:-1], kind="stable").tolist(), len(keys) - 1]
    return Bins(tuple(keys[row] for row in order), guess[order], most[order])


def _counts(plain: Bins, said: Sequence[Key], prompt: Prompt | None) -> tuple[HostArray, HostArray]:
    """The least and the most times that each bin's token may count for penalties, (B,) each."""
    counts = Counter([*said, *(() if prompt is None else prompt.pieces)])
    least = np.array([float(counts[key]) for key in plain.keys[:-1]] + [0.0])
    if prompt is None:
        more = [0] * (len(least) - 1) + [sum(counts.values()) - least.sum()]
    else:
        more = [_times(prompt, key) for key in plain.keys[:-1]] + [MANY]
    return least, least + np.array(more)


def _times(prompt: Prompt, key: Key) -> int:
    """The most times that a token may occur in a prompt. A word of the prompt's alphabet occurs as
    often as that word; any other token might occur wherever its characters do."""
    if key in prompt.pieces:
        return len(re.findall(rf"\b{re.escape(key.strip())}\b", prompt.intro))
    return prompt.text.count(key)


def _kept(plain: Bins, options: Mapping[str, float], slack: float) -> tuple[HostArray, HostArray]:
    """Which bins a truncation certainly keeps, and which it certainly removes, (B,) each.

    The tail's tokens may have any rank that its mass allows.
    """
    top_p, top_k, min_p = (options.get(name, 0.0) for name in ("top_p", "top_k", "min_p"))
    tail = float(plain.most[-1])
    sizes = np.array([*plain.chances[:-1], tail])  # of one token, at most
    listed = np.array([*plain.chances[:-1], 0.0])
    near = 2 * slack + 1e-6
    ahead = listed > sizes[:, None] * (1 + near)  # (B, B): column before row
    maybe = (listed >= sizes[:, None] * (1 - near)) & (listed > 0)
    np.fill_diagonal(maybe, val=False)
    hidden = np.floor(tail / np.maximum(sizes * (1 - near), 1e-12))  # of the tail, before a row
    is_in, is_out = np.ones(len(sizes), dtype=bool), np.zeros(len(sizes), dtype=bool)
    if top_p:
        is_in &= (maybe @ listed + tail * (hidden > 0)) * (1 + near) < top_p
        is_out |= ahead @ listed * (1 - near) >= top_p
    if top_k:
        is_in &= maybe.sum(axis=1) + hidden < top_k
        is_out |= ahead.sum(axis=1) >= top_k
    if min_p:
        is_in &= sizes * (1 - near) >= min_p * max(float(sizes.max()), tail)
        is_out |= sizes * (1 + near) < min_p * float(listed.max())
    if top_p or top_k or min_p:
        is_in[-1] = False
    return is_in, is_out
