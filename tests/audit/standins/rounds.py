"""One round of speculation, right or wrong: a draft, the target's rows, the emitted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import array_api_compat as compat
import numpy as np

from forerun import rules
from forerun.base.arrays import HostArray, as_indices
from forerun.noise.addresses import Addressing, Purpose, by_round
from forerun.noise.race import seed_key, uniform
from forerun.proof.broken import block, drafts_by_position, owed, sample, walk
from forerun.proof.rounds import Drawer, Verifier, draw_plainly
from forerun.rules.base import CounterNoise, Rule
from forerun.rules.types import Draft
from forerun.verification import prepare
from standins.language import ngram_guess

Prefix = tuple[int, ...]
Row = Callable[[Prefix], HostArray]
"""The law (V,) after a text."""


@dataclass(frozen=True)
class Place:
    """Where a round starts: the text, how many of its tokens are new, and the request's seed.

    told: the law that drafts are said to come from; None: that which they do come from.
    """

    text: Prefix
    first: int
    seed: int
    told: Row | None = None


class Round(Protocol):
    """Emits at most K + 1 tokens: those accepted of K drafted ones, then one more."""

    def __call__(self, place: Place, target: Row, draft: Row, length: int) -> list[int]: ...


@dataclass(frozen=True)
class RuleRound:
    """A rule of forerun with noise as it ships, or at other addresses.

    drafts: "model" draws from the drafter's law, "ngram" looks the text up, "argmax" takes the
    drafter's likeliest tokens.
    """

    rule: str | Rule = "match"
    drafts: str = "ngram"
    addressing: Addressing = by_round

    def __call__(self, place: Place, target: Row, draft: Row, length: int) -> list[int]:
        if length == 0:
            return [_plain(place, target)]
        rule = rules.get(self.rule)
        made = self.draft(place, draft, length)
        tokens = list(made.tokens[0])
        rows = [target(place.text + tuple(tokens[:slot])) for slot in range(len(tokens) + 1)]
        trial = prepare(made, np.array(rows)[None], None, 1.0, rule)
        key = seed_key(trial.xp, [place.seed], compat.device(trial.tokens))
        first = as_indices(trial.xp, [place.first], compat.device(trial.tokens))
        noise = CounterNoise(trial.xp, key, first, self.addressing)
        reached, extra = rule.decide(trial, noise)
        return [*(int(token) for token in tokens[: int(reached[0])]), int(extra[0])]

    def draft(self, place: Place, draft: Row, length: int) -> Draft:
        tokens: list[int] = []
        laws: list[HostArray] = []
        for slot in range(length):
            guess = ngram_guess(place.text + tuple(tokens)) if self.drafts == "ngram" else None
            if self.drafts == "ngram" and guess is None:
                break
            if guess is None:
                law = draft(place.text + tuple(tokens))
                laws.append(law)
                guess = int(np.argmax(law))
                if self.drafts == "model":
                    at = self.addressing(Purpose.DRAFT, place.first, slot)
                    unit = uniform(place.seed, *at, Purpose.DRAFT)
                    guess = int(np.searchsorted(np.cumsum(law), float(unit) * law.sum()))
            tokens.append(min(guess, len(draft(place.text)) - 1))
        ids = np.array(tokens, dtype=np.int64)[None]
        if self.drafts == "model" and tokens:
            return Draft.sampled(ids, np.array(laws)[None])
        return Draft.point(ids)


@dataclass(frozen=True)
class FunctionRound:
    """A verifier written for a generator of random numbers, such as `certify`'s mutants."""

    verify: Verifier
    draw: Drawer = draw_plainly

    def __call__(self, place: Place, target: Row, draft: Row, length: int) -> list[int]:
        rng = np.random.default_rng((place.seed, place.first))
        tokens, laws = self.draw(lambda after: draft(place.text + after), length, rng)[:2]
        if (told := place.told) is not None:
            laws = [told(place.text + tuple(tokens[:slot])) for slot in range(len(tokens))]
        rows = [target(place.text + tuple(tokens[:slot])) for slot in range(len(tokens) + 1)]
        emitted = self.verify(tokens, laws, np.array(rows), rng)
        return [int(token) for token in emitted]


def likeliest_bonus(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """The `ratio` rule, but three bonus tokens in ten are the likeliest ones."""
    emitted = walk(tokens, draft, target, rng)
    if len(emitted) > len(tokens) > 0 and rng.random() < 0.3:
        emitted[-1] = int(np.argmax(target[-1]))
    return emitted


@dataclass(frozen=True)
class SharedRaceRound:
    """Draft and residual race on the same noise, as in vLLM from April to August 2026."""

    def __call__(self, place: Place, target: Row, draft: Row, length: int) -> list[int]:
        rng = np.random.default_rng((place.seed, place.first))
        kept: list[int] = []
        for _ in range(length):
            text = place.text + tuple(kept)
            p, q = target(text), draft(text)
            noise = rng.exponential(size=len(p))
            token = _winner(noise, q)
            if not rng.random() < p[token] / q[token]:
                return [*kept, _winner(noise, owed(p, q))]
            kept.append(token)
        return [*kept, sample(rng, target(place.text + tuple(kept)))]


@dataclass(frozen=True)
class OneCoinBlockRound:
    """Block verification with one coin a slot, as vLLM 0.32 has it, and coins by position.

    Each coin lies at the position of its slot; a round reads all of them, so after a short
    acceptance the next one meets coins that are known to have failed.
    drafts: "model" is drawn with numbers that lie at the token's position (`by_position`) or at the
    round's, "argmax" and "ngram" are certain.
    """

    drafts: str = "model"
    by_position: bool = False
    coins_by_position: bool = True

    def __call__(self, place: Place, target: Row, draft: Row, length: int) -> list[int]:
        addressing = drafts_by_position if self.by_position else by_round
        made = RuleRound("block", self.drafts, addressing).draft(place, draft, length)
        tokens = [int(token) for token in made.tokens[0]]
        rows = np.array(
            [target(place.text + tuple(tokens[:slot])) for slot in range(len(tokens) + 1)]
        )
        laws = np.eye(rows.shape[1])[tokens] if made.probs is None else np.asarray(made.probs)[0]
        numbers = _Numbers(place, len(tokens), self.coins_by_position)
        return block(tokens, laws, rows, numbers)


@dataclass
class _Numbers:
    """Stands in for a generator: the coins of a round in order, then the draw that ends it."""

    place: Place
    num_slots: int
    by_position: bool
    _next: int = 0

    def random(self) -> float:
        slot, self._next = self._next, self._next + 1
        first = self.place.first
        at = (first + slot, 0) if self.by_position else (first, slot)
        return float(uniform(self.place.seed, *at, Purpose.ACCEPT))

    def choice(self, size: int, p: HostArray) -> int:
        unit = float(uniform(self.place.seed, self.place.first, 0, Purpose.RESIDUAL))
        return min(int(np.searchsorted(np.cumsum(p), unit)), size - 1)


def _plain(place: Place, target: Row) -> int:
    """A token without speculation."""
    unit = float(uniform(place.seed, place.first, 0, Purpose.TARGET))
    law = target(place.text)
    return min(int(np.searchsorted(np.cumsum(law), unit * law.sum())), len(law) - 1)


def _winner(noise: HostArray, weights: HostArray) -> int:
    with np.errstate(divide="ignore"):
        return int(np.argmin(noise / weights))


def plain_round(place: Place, target: Row, draft: Row, length: int) -> list[int]:
    """No speculation: one token."""
    return [_plain(place, target)]
