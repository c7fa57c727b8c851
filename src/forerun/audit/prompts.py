"""Prompts with a few likely words at every place, which leave drafters room to be wrong.

A drafter that copies always has something to copy here, and a model that is asked to go on with
flips of a coin is never sure.  So most places have two to four likely tokens, the law is known at
many places after few requests, and a bias of drafts shows where it is largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.audit.bins import Key


@dataclass(frozen=True)
class Prompt:
    """A prompt as pieces; those at its end look like tokens, which n-grams are taken from."""

    intro: str
    pieces: tuple[Key, ...]

    @property
    def text(self) -> str:
        """The prompt as it is sent."""
        return self.intro + "".join(self.pieces)


ALPHABETS = (
    ("A random sequence of the letters a, b, c and d:", " a", " b", " c", " d"),
    ("Flips of a fair coin, heads or tails:", " heads", " tails"),
    ("Rock, paper, scissors, at random:", " rock", " paper", " scissors"),
)
"""What each prompt says first, and the words that are drawn for it."""
NUM_PIECES = 24
"""Words of a prompt: enough that most pairs of them have come before."""


def prompts(seed: int = 0) -> list[Prompt]:
    """One prompt of every alphabet."""
    generator = np.random.default_rng((seed, 18))
    made = []
    for intro, *words in ALPHABETS:
        drawn = generator.integers(len(words), size=NUM_PIECES)
        made.append(Prompt(intro, tuple(words[index] for index in drawn)))
    return made


COPYING = Prompt(
    "",
    tuple(
        " one two three four five six seven eight nine ten".replace(" ", "\0 ").split("\0")[1:] * 3
    ),
)
"""A text that nearly everybody continues alike: long runs of accepted drafts, at temperature 0."""
