"""Computes the features on which experts bet: facts about a place in a text that are known before
its token is.

A server whose speculation is biased favours the tokens that it drafted, or avoids them. Drafts
cannot be seen from outside, but two guesses come close: what an n-gram drafter would guess, and the
token that the model itself finds likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.audit.bins import Bins, Key
from forerun.audit.evidence import View
from forerun.base.arrays import HostArray

NAMES = (
    "the likeliest token",
    "the second likeliest token",
    "the token that an n-gram would copy",
    "the same, after a copy that failed",
    "the likeliest token, after another one",
    "the token just said",
    "tokens below 10%",
    "likely tokens over unlikely ones",
    "the likeliest token, where it has half or more",
    "the copied token, where it has half or more",
    "the likeliest token, at the end of a text",
)
"""The names of the features, in the order of the table's columns."""
RARE = 0.1
UNLIKELY = 1e-3
HALF = 0.5
"""A token is rare below the first of these probabilities, practically impossible below the second,
and counts as likely from the third on."""
LONGEST = 4
"""The most preceding tokens that are compared to find the place that a copy would continue."""


def features(
    bins: Bins,
    text: Sequence[Key],
    place: int,
    likeliest_before: Key | None,
    *,
    is_last: bool = False,
) -> HostArray:
    """The features (B, len(NAMES)) of a place whose earlier tokens, prompt included, are
    text[:place].

    likeliest_before: the likeliest token of the place before.
    is_last: no more tokens were requested.
    """
    table = np.zeros((len(bins.keys), len(NAMES)))
    table[0, 0] = 1.0
    table[0, 10] = is_last
    table[0, 8] = bins.chances[0] >= HALF
    if len(bins.keys) > 2:
        table[1, 1] = 1.0
    guess = copied(text, place)
    if guess is not None and guess in bins.keys:
        row = bins.index(guess)
        table[row, 2] = 1.0
        table[row, 9] = bins.chances[row] >= HALF
        before = copied(text, place - 1)
        if before is not None and before != text[place - 1]:
            table[row, 3] = 1.0
    if place and text[place - 1] in bins.keys:
        table[bins.index(text[place - 1]), 5] = 1.0
    if place and text[place - 1] != likeliest_before:
        table[0, 4] = 1.0
    table[:, 6] = bins.chances < RARE
    table[-1, 6] = 1.0
    table[:, 7] = np.log(np.maximum(bins.chances, UNLIKELY))
    return table


@dataclass(frozen=True)
class Spot:
    """A place in a text, with the tokens before it, text[:place], and the law without options.

    prompt: the whole prompt, which distinguishes texts.
    """

    text: Sequence[Key]
    place: int
    prompt: str
    plain: Bins
    is_last: bool = False  # no more tokens were asked for

    def view(self, law: Bins, before: Bins | None = None) -> View:
        """The facts about this place that bets may use.

        law: of this place. before: the law of the place before, if known.
        """
        likeliest = before.keys[0] if before is not None else None
        two = tuple(self.text[max(0, self.place - 2) : self.place])
        return View(
            law,
            features(law, self.text, self.place, likeliest, is_last=self.is_last),
            [("prompt", self.prompt), two[-1:], two, (self.prompt, *self.text[: self.place])],
            [(before or law).spread_over(law.keys), self.plain.spread_over(law.keys)],
        )


def copied(text: Sequence[Key], place: int) -> Key | None:
    """The token that followed the last tokens before `place` at their latest earlier occurrence."""
    end = _match(text, place, LONGEST, 1)
    return None if end is None else text[end]


def run_of(text: Sequence[Key], place: int, length: int) -> list[Key]:
    """The tokens that an n-gram drafter guesses at once: those after the latest match of three or
    two tokens, continuing into the copy itself; none without a match."""
    start = _match(text, place, 3, 2)
    run: list[Key] = []
    for offset in range(start, start + length) if start is not None else ():
        run.append(text[offset] if offset < place else run[offset - place])
    return run


def _match(text: Sequence[Key], place: int, longest: int, shortest: int) -> int | None:
    """The index after the latest earlier occurrence of the last tokens before `place`; None if
    there is none."""
    for size in range(min(longest, place - 1), shortest - 1, -1):
        tail = tuple(text[place - size : place])
        for end in range(place - 1, size - 1, -1):
            if tuple(text[end - size : end]) == tail:
                return end
    return None
