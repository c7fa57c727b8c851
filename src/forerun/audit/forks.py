"""Where two answers to one question part, and by how much the two tokens differ there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.audit.budget import SpentError
from forerun.audit.endpoint import Endpoint
from forerun.audit.questions import Choice, RefusedError, Token

NEAR = 0.1
"""Nats within which two tokens may change places by rounding."""


@dataclass(frozen=True)
class Fork:
    """place: how many tokens (characters where tokens are not told) are the same.

    gap: between the log-probabilities of the two next tokens; None if not known.
    """

    place: int
    gap: float | None

    @property
    def is_near_tie(self) -> bool:
        return self.gap is not None and self.gap <= NEAR

    @property
    def words(self) -> str:
        if self.gap is None:
            return f"at {self.place}, of unknown size"
        return f"at token {self.place}, where the two differ by {self.gap:.2g} nats"


def first_fork(endpoint: Endpoint, prompt: str, one: Choice, other: Choice) -> Fork | None:
    """Where two answers part; None if they are the same."""
    if one.text == other.text:
        return None
    if one.tokens is None or other.tokens is None:
        return Fork(_common(one.text, other.text), None)
    place = _common([t.text for t in one.tokens], [t.text for t in other.tokens])
    if place == min(len(one.tokens), len(other.tokens)):
        return Fork(place, None)
    gap = _gap(endpoint, prompt, one.tokens[:place], one.tokens[place], other.tokens[place])
    return Fork(place, gap)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _gap(
    endpoint: Endpoint, prompt: str, before: Sequence[Token], one: Token, other: Token
) -> float | None:
    try:
        law = endpoint.law(prompt, before)
    except (SpentError, RefusedError):
        return None
    if law is None or one.text not in law.keys or other.text not in law.keys:
        return None
    chances = [max(law.chance(token.text), 1e-12) for token in (one, other)]
    return abs(math.log(chances[0] / chances[1]))
