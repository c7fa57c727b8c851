"""Prompts after which several words are likely at every place, so that drafters are often wrong.

A copying drafter always finds something to copy here, and a model that continues a list of coin
flips is never sure. So most places have two to four likely tokens, few requests show the law at
many places, and biased verification shows most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.audit.bins import Key


@dataclass(frozen=True)
class Prompt:
    """A prompt as an introduction and pieces; the pieces look like tokens, from which n-grams are
    made."""

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
"""The introduction of each prompt, and the words that are drawn for it."""
NUM_PIECES = 24
"""The number of words in a prompt: enough that most pairs of words have occurred before."""


def prompts(seed: int = 0) -> list[Prompt]:
    """One prompt for each alphabet, shuffled by the seed."""
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
"""A prompt that nearly every model continues in the same way, so that long runs of drafts are
accepted at temperature 0."""
