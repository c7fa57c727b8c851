"""Code of a user's that breaks every promise: processors, grammars, drafters and tokenizers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from drafting import Quiet, TextTurn

from forerun.drafters import Guess


class Unspeakable(Exception):
    """An exception that cannot even be written."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Panic(BaseException):
    """As a library written in Rust raises it."""


RAISED: list[Callable[[], BaseException]] = [
    lambda: KeyError("three"),
    lambda: StopIteration(),
    lambda: GeneratorExit(),
    lambda: asyncio.CancelledError(),
    lambda: Panic("at some line"),
    Unspeakable,
]
"""Exceptions that belong to the request in any thread."""
EXITS: list[Callable[[], BaseException]] = [lambda: SystemExit(1), KeyboardInterrupt]
"""Those that belong to it everywhere but in the main thread."""


def raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise make()

    return fail


WRONG_ROWS: dict[str, Callable[[Any], Any]] = {
    "longer": lambda scores: torch.cat([scores, scores], dim=1),
    "shorter": lambda scores: scores[:, :-1],
    "no batch": lambda scores: scores[0],
    "two rows": lambda scores: scores.repeat(2, 1),
    "no row": lambda scores: scores[:0],
    "none": lambda scores: None,
    "a list": lambda scores: scores.tolist(),
    "numpy": lambda scores: scores.numpy(),
    "whole numbers": lambda scores: scores.long(),
    "complex": lambda scores: scores.to(torch.complex64),
    "NaN": lambda scores: scores * float("nan"),
    "one NaN": lambda scores: torch.where(scores == scores.min(), float("nan"), scores),
    "inf": lambda scores: scores + float("inf"),
    "nothing possible": lambda scores: torch.full_like(scores, -float("inf")),
}
"""Answers of a processor that are no scores."""


@dataclass
class Processor:
    """Does something wrong from a length of the text on."""

    wrong: Callable[[Any], Any]
    begins: int = 0

    def __call__(self, ids: Any, scores: Any) -> Any:
        return self.wrong(scores) if ids.shape[1] >= self.begins else scores


@dataclass
class Uncopiable:
    """Can be copied for a while."""

    copies_left: int

    def __deepcopy__(self, memo: Any) -> Any:
        if self.copies_left == 0:
            raise Panic("copied too often")
        self.copies_left -= 1
        return copy.copy(self)

    def __call__(self, ids: Any, scores: Any) -> Any:
        return scores


@dataclass
class Keeping:
    """Writes into what it was given and what it returned before."""

    last: Any = None

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __call__(self, ids: Any, scores: Any) -> Any:
        ids.zero_()
        if self.last is not None:
            self.last.fill_(float("nan"))
        self.last = scores
        return scores


MASKS: dict[str, Callable[[int], Any]] = {
    "a longer mask": lambda size: [True] * (size + 1),
    "unknown ids": lambda size: [size],
    "negative ids": lambda size: [-1],
    "numbers": lambda size: [0.5] * size,
    "nothing": lambda size: [],
    "none": lambda size: None,
    "a mask of masks": lambda size: np.ones((2, size), dtype=bool),
}
"""Answers of a grammar that are no mask."""


@dataclass
class Grammar:
    """Allows everything; its matcher does something wrong after some tokens."""

    wrong: Callable[[int], Any]
    begins: int
    where: str  # "mask", "accept", "rollback" or "forced"; "matcher": at all, and in no new one
    has_made: bool = False

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Sequence[int]) -> Any:
        if self.where == "matcher" and self.has_made:
            self.wrong(vocab_size)
        self.has_made = True
        return _Matcher(self, vocab_size)


@dataclass
class _Matcher:
    grammar: Grammar
    vocab_size: int
    count: int = 0

    def _at(self, where: str, usual: Any) -> Any:
        is_here = where == self.grammar.where or self.grammar.where == "matcher"
        if is_here and self.count >= self.grammar.begins:
            return self.grammar.wrong(self.vocab_size)
        return usual

    def accept(self, token: int) -> Any:
        self.count += 1
        return self._at("accept", True)

    def rollback(self, count: int) -> None:
        self.count -= count
        self._at("rollback", None)

    def mask(self) -> Any:
        return self._at("mask", np.ones(self.vocab_size, dtype=bool))

    def forced(self) -> Any:
        return self._at("forced", [])


class Vanishing(Sequence[Any]):
    """A list of guesses that has a length and nothing else."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        raise Panic("no such guess")


ANSWERS: list[Callable[[TextTurn], Any]] = [
    lambda turn: raising(lambda: Panic("drafter"))(),
    lambda turn: raising(Unspeakable)(),
    lambda turn: None,
    lambda turn: Guess([-1]),
    lambda turn: Guess([10**30]),
    lambda turn: Guess([1] * (turn.budget + 1)),
    lambda turn: Guess([1, 2], values=[float("nan")] * 3),
    lambda turn: Guess([1, 2, 3][: turn.budget], values=[float("nan")] * min(3, turn.budget)),
    lambda turn: Guess([1], parents=[5]),
    lambda turn: Guess(["a"]),  # type: ignore[list-item]
]
"""Guesses that are none."""


@dataclass
class Drafter(Quiet):
    """Guesses now right, now wrong, and now breaks a promise."""

    seed: int
    vocab_size: int
    name: str = "hostile"

    def start(self, target: Any, num_rows: int, capacity: int, rows: Any = None) -> Any:
        self._rng = np.random.default_rng(self.seed)
        return super().start(target, num_rows, capacity, rows)

    def _strikes(self) -> bool:
        return self._rng.random() < 0.03

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> Any:
        if self._strikes():
            return Vanishing(len(turns))
        return super().propose(state, turns, shared_noise=shared_noise)

    def guess(self, turn: TextTurn) -> Any:
        if self._strikes():
            return ANSWERS[self._rng.integers(len(ANSWERS))](turn)
        count = int(self._rng.integers(turn.height + 1))
        return Guess(self._rng.integers(self.vocab_size, size=count).tolist())

    def observe(self, state: Any, outcomes: Any) -> None:
        if self._strikes():
            raise Panic("observe")
        super().observe(state, outcomes)

    def release(self, state: Any, row: int) -> None:
        if self._strikes():
            raise asyncio.CancelledError
        super().release(state, row)

    def close(self, state: Any) -> None:
        raise Panic("close")


class Tokenizer:
    """Token i is the i-th letter; one of them it cannot decode."""

    eos_token_id = None

    def __init__(self, bad: int | None, make: Callable[[], BaseException]) -> None:
        self.bad, self.make = bad, make

    def decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
        if self.bad in tokens:
            raise self.make()
        return "".join(chr(97 + token) for token in tokens)
