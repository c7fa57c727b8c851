"""Ways to sample, and the laws they make of a law that is known by its likeliest tokens.

The law without options is what one-token requests state.  From it follows the law at another
temperature, under a truncation and after penalties, up to what the endpoint does not say: what the
tail is made of, how close calls at the edge of a truncation end, and which tokens of the prompt
count as said.  So every chance has an upper bound that an honest endpoint does not exceed, and the
bets of `evidence` are paid by that bound.
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
"""The most that a token may have which an option excludes, so that seeing one can be counted."""
MANY = 1e6
"""How often a token may have been said, where nothing is known of it."""
BET_ON_OUT = 1e-3
"""What bets put on all excluded tokens together."""
SHORT = 4
"""Tokens of texts under options: short ones begin alike more often, so that fewer laws have to be
asked for, and what comes at a place is learned sooner."""


@dataclass(frozen=True)
class Condition:
    """How texts are sampled: options beside the plain ones, and the number of tokens asked for."""

    name: str
    options: Mapping[str, float] = field(default_factory=dict)
    length: int = 8

    @property
    def has_penalties(self) -> bool:
        """Whether the law of a token depends on which tokens were said."""
        return any(name.endswith("_penalty") for name in self.options)

    @property
    def num_readings(self) -> int:
        """In how many ways honest servers understand the options."""
        return 2 if self.has_penalties else 1

    @property
    def options_at_once(self) -> Mapping[str, float]:
        """The options that act on the first token of an answer, too."""
        return {} if self.has_penalties else self.options

    def laws(self, plain: Bins, said: Sequence[Key], prompt: Prompt, slack: float) -> list[Bins]:
        """The law under each honest reading of the options: for penalties, servers count the
        generated tokens alone, or those of the prompt as well."""
        if not self.options:
            return [plain]
        readings: list[Prompt | None] = [None, prompt] if self.has_penalties else [None]
        return [changed(plain, self.options, said, reading, slack) for reading in readings]

    def slack(self, plain: float) -> float:
        """How far rounding may move a ratio of chances, where it moves those of the plain law by
        `plain`: a token's weight and the sum of all move at once."""
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
"""One option at a time, since servers differ in the order in which they apply several."""


def changed(
    plain: Bins,
    options: Mapping[str, float],
    said: Sequence[Key] = (),
    prompt: Prompt | None = None,
    slack: float = 0.0,
) -> Bins:
    """The law under a temperature, one truncation or penalties.

    said: what was generated before.  prompt: if penalties count it, too.
    slack: how far chances may be off as ratios; such close calls at the edge of a truncation are
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
    """A law whose weights lie between two bounds (B,)."""
    most = high / np.maximum(high + low.sum() - low, 1e-300)
    guess = (low + high) / (low + high).sum()
    is_out = high == 0
    if is_out.any():
        guess = np.where(is_out, BET_ON_OUT / is_out.sum(), (1 - BET_ON_OUT) * guess)
        most = np.maximum(most, SURELY_OUT)
    order = [*np.argsort(-guess[:-1], kind="stable").tolist(), len(keys) - 1]
    return Bins(tuple(keys[row] for row in order), guess[order], most[order])


def _counts(plain: Bins, said: Sequence[Key], prompt: Prompt | None) -> tuple[HostArray, HostArray]:
    """How often each bin's token counts as said, at least and at most, (B,)."""
    counts = Counter([*said, *(() if prompt is None else prompt.pieces)])
    least = np.array([float(counts[key]) for key in plain.keys[:-1]] + [0.0])
    if prompt is None:
        more = [0] * (len(least) - 1) + [sum(counts.values()) - least.sum()]
    else:
        more = [_times(prompt, key) for key in plain.keys[:-1]] + [MANY]
    return least, least + np.array(more)


def _times(prompt: Prompt, key: Key) -> int:
    """How often a token may occur in the pieces of a prompt: a word of the prompt's alphabet as
    often as that word, another token wherever its characters occur."""
    if key in prompt.pieces:
        return len(re.findall(rf"\b{re.escape(key.strip())}\b", prompt.intro))
    return prompt.text.count(key)


def _kept(plain: Bins, options: Mapping[str, float], slack: float) -> tuple[HostArray, HostArray]:
    """Which bins a truncation surely keeps, and which it surely leaves out, (B,) each.

    Tokens of the tail may stand anywhere that their mass allows.
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
