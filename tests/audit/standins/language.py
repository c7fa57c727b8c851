"""A language of a few words with a law of its own after every two of them, and a drafter for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from forerun.audit.prompts import ALPHABETS
from forerun.base.arrays import HostArray

RARER = -6.0
"""How much the rare words lie below the usual ones, as log-probabilities."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Language:
    """Each token is a space and a word; the law of the next depends on the last two.

    num_words: of which the first num_usual share all but 2% of the mass.
    peak: how much the usual words of a law differ; at 0 all are equally likely.
    constant: one law (V,) for all contexts, where given.
    """

    num_words: int = 26
    num_usual: int = 4
    seed: int = 0
    peak: float = 1.0
    constant: tuple[float, ...] | None = None
    _laws: dict[tuple[int, ...], HostArray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.constant is not None:
            self.num_words = len(self.constant)

    def text(self, token: int) -> str:
        return f" {LETTERS[token]}"

    def tokens(self, text: str) -> list[int]:
        """A letter of the language is its own token, any other word one that its letters choose."""
        known = LETTERS[: self.num_words]
        return [
            known.index(word) if len(word) == 1 and word in known else self._other(word)
            for word in text.split()
        ]

    def _other(self, word: str) -> int:
        return crc32(word.encode()) % self.num_words

    def logits(self, prefix: tuple[int, ...]) -> HostArray:
        """Log-probabilities (V,) after a prefix."""
        if self.constant is not None:
            return np.asarray(np.log(self.constant))
        context = prefix[-2:]
        if context not in self._laws:
            generator = np.random.default_rng((self.seed, *context))
            raw = self.peak * generator.standard_normal(self.num_words)
            raw[self.num_usual :] += RARER
            self._laws[context] = raw - np.log(np.exp(raw).sum())
        return self._laws[context]


@dataclass
class PromptLanguage(Language):
    """The words of the audit's own prompts, as a model that reads them has: after a word of one
    alphabet another one of it, by chances that fall by a third from word to word."""

    def __post_init__(self) -> None:
        self.words = [word for _, *words in ALPHABETS for word in words]
        self.num_words = len(self.words)

    def text(self, token: int) -> str:
        return self.words[token]

    def tokens(self, text: str) -> list[int]:
        known = {word.strip(): token for token, word in enumerate(self.words)}
        return [known.get(word, self._other(word)) for word in text.split()]

    def logits(self, prefix: tuple[int, ...]) -> HostArray:
        last = self.words[prefix[-1]] if prefix else self.words[0]
        alphabet = next(words for _, *words in ALPHABETS if last in words)
        weights = np.full(self.num_words, 1e-3)
        for place, word in enumerate(alphabet):
            weights[self.words.index(word)] = (2 / 3) ** place
        return np.asarray(np.log(weights / weights.sum()))


@dataclass
class Drafter:
    """A model that errs: the language's law after one word only, with noise, at a temperature.

    constant: one law (V,) for all contexts, where given.
    """

    language: Language
    error: float = 1.0
    constant: tuple[float, ...] | None = None
    _laws: dict[tuple[int, ...], HostArray] = field(default_factory=dict, repr=False)

    def law(self, prefix: tuple[int, ...]) -> HostArray:
        if self.constant is not None:
            return np.asarray(self.constant)
        context = prefix[-2:]
        if context not in self._laws:
            generator = np.random.default_rng((self.language.seed, 1, *context))
            raw = self.language.logits(context)
            raw = raw + self.error * generator.standard_normal(len(raw))
            weights = np.exp(raw - raw.max())
            self._laws[context] = weights / weights.sum()
        return self._laws[context]


def ngram_guess(text: tuple[int, ...], longest: int = 3) -> int | None:
    """What followed the latest earlier place where the last tokens stood; None for none."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        tail = text[-size:]
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == tail:
                return text[end]
    return None
