"""Drafters that are partly right, always wrong, or break their promises."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from tiny_models import VOCAB_SIZE, Architecture

import forerun as fr
from forerun.drafters import Drafter, Guess, Outcome, Turn
from forerun.drafters.texts import Text, Texts
from forerun.models import LanguageModel


@dataclass(frozen=True)
class TextTurn(Turn):
    """A turn that shows the whole text."""

    tokens: Sequence[int] = ()  # the text so far, prompt included
    num_prompt: int = 0


def with_text(turn: Turn, text: Text) -> TextTurn:
    """The turn with the text of its row."""
    known = {part.name: getattr(turn, part.name) for part in fields(Turn)}
    return TextTurn(**known, tokens=text.tokens, num_prompt=text.num_prompt)


def noisy_copy(model: Any, amount: float, seed: int = 0) -> Any:
    """A transformers model that often, but not always, agrees with the original."""
    generator = torch.Generator().manual_seed(seed)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for weights in changed.parameters():
            noise = torch.randn(weights.shape, generator=generator).to(weights.dtype)
            weights += amount * weights.std(correction=0) * noise
    return changed


@cache
def tiny_pair() -> tuple[LanguageModel, Drafter]:
    """A float64 Llama and a drafter that agrees with it about every other time."""
    model = Architecture("llama", "crop").build()
    return fr.wrap(model), fr.drafters.Model(noisy_copy(model, 0.1))


class Quiet:
    """A drafter that knows its texts and says nothing; the others say something."""

    name = "quiet"

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Any:
        return Texts()

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.enter(row, tokens, num_prompt)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return [self.guess(with_text(turn, state[turn.row])) for turn in turns]

    def guess(self, turn: TextTurn) -> Guess:
        return Guess()

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        state.observe(outcomes)

    def release(self, state: Any, row: int) -> None:
        state.release(row)


@dataclass
class Saying(Quiet):
    """Answers whatever it is told to."""

    answer: Callable[[TextTurn], Any]
    name: str = "saying"

    def guess(self, turn: TextTurn) -> Any:
        return self.answer(turn)


@dataclass
class Random(Quiet):
    """Any number of any tokens, the same for the same text."""

    vocab_size: int = VOCAB_SIZE
    name: str = "random"

    def guess(self, turn: TextTurn) -> Guess:
        generator = np.random.default_rng([len(turn.tokens), *turn.tokens])
        count = int(generator.integers(turn.height + 1))
        return Guess([int(token) for token in generator.integers(self.vocab_size, size=count)])


@dataclass
class Recalling(Quiet):
    """Knows how the texts go on, and gets some of the tokens wrong on purpose."""

    texts: list[list[int]]
    mistakes: float = 0.0
    vocab_size: int = VOCAB_SIZE
    name: str = "recalling"

    def guess(self, turn: TextTurn) -> Guess:
        here = list(turn.tokens)
        text = next((text for text in self.texts if text[: len(here)] == here), here)
        generator = np.random.default_rng(here)
        tokens = text[len(here) : len(here) + turn.height]
        wrong = generator.random(len(tokens)) < self.mistakes
        return Guess([(t + bool(w)) % self.vocab_size for t, w in zip(tokens, wrong, strict=True)])


def recalling(*answers: fr.Generation, mistakes: float = 0.0, vocab_size: int) -> Recalling:
    """A drafter that remembers these generations."""
    texts = [answer.prompt_tokens + answer.tokens for answer in answers]
    return Recalling(texts, mistakes, vocab_size)


@dataclass
class Branching(Quiet):
    """Trees of any shape, of right and wrong tokens, the same for the same text."""

    texts: list[list[int]]
    vocab_size: int = VOCAB_SIZE
    name: str = "branching"

    def guess(self, turn: TextTurn) -> Guess:
        here = list(turn.tokens)
        text = next((text for text in self.texts if text[: len(here)] == here), here)
        generator = np.random.default_rng([turn.seed % 997, *here])
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for node in range(int(generator.integers(turn.budget + 1))):
            parent = int(generator.integers(-1, node)) if generator.random() < 0.6 else node - 1
            depth = depths[parent] + 1 if parent >= 0 else 0
            if depth >= turn.height:
                parent, depth = -1, 0
            right = text[len(here) + depth : len(here) + depth + 1]
            wrong = int(generator.integers(self.vocab_size))
            tokens.append(right[0] if right and generator.random() < 0.7 else wrong)
            parents.append(parent)
            depths.append(depth)
        return Guess(tokens, parents=parents)
