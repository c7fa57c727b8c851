"""All drafters keep what drafters promise; and one that does not is caught."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from drafting import Quiet, Random, TextTurn, noisy_copy
from tiny_models import VOCAB_SIZE, Architecture

import forerun as fr
from forerun.drafters import (
    EarlyExit,
    Forced,
    Guess,
    Mixed,
    Model,
    NGram,
    Outcome,
    Quantized,
    Suffix,
    Turn,
)
from forerun.models import TableModel
from forerun.rules.types import Drawn
from forerun.testing import BrokenPromise, check_drafter
from forerun.trees.sibling_laws import Children
from forerun.trees.tree import ROOT

TABLE = TableModel.random(vocab_size=7, order=2, seed=0)
OTHER = TableModel.random(vocab_size=7, order=1, seed=3)
WIDE = TableModel.random(VOCAB_SIZE, order=1, seed=3)


class Short(TableModel):
    max_context = 20


SHORT = Short(7, 2, TABLE.table)


@cache
def llama() -> Any:
    return Architecture("llama", "crop", {"max_position_embeddings": 40}).build()


@cache
def target() -> Any:
    return fr.wrap(llama())


def still() -> float:
    """A clock that stands: what is measured would otherwise differ from run to run."""
    return 0.0


ON_TABLES: dict[str, Callable[[], Any]] = {
    "ngram": NGram,
    "ngram from 1": lambda: NGram(min_n=1),
    "suffix": Suffix,
    "suffix, bold": lambda: Suffix(worth=0.01, max_nodes=60, max_match=3),
    "model": lambda: Model(OTHER),
    "model, independent": lambda: Model(OTHER, children=Children.INDEPENDENT),
    "model, without replacement": lambda: Model(OTHER, children="without_replacement"),
    "model, warm": lambda: Model(OTHER, temperature=2.0),
    "mixed": lambda: Mixed(Suffix(worth=0.01), Model(OTHER), NGram(min_n=1), clock=still),
    "forced": lambda: Forced(Model(OTHER)),
    "random": lambda: Random(7),
}

VARIANTS = {"ngram from 1", "model, warm", "model, independent", "model, without replacement"}
VARIANTS |= {"forced", "suffix, bold", "random"}
"""Another number, or another way to draw siblings, in what runs by default; a grammar's drafter
without a grammar, which passes everything on; and a drafter of the tests."""

ON_TRANSFORMERS: dict[str, Callable[[], Any]] = {
    "model": lambda: Model(noisy_copy(llama(), 0.1)),
    "mixed": lambda: Mixed(Suffix(), Model(WIDE), clock=still),
    "early exit": lambda: EarlyExit(1),
    "quantized": Quantized,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in ON_TABLES],
)
def test_on_a_table(name: str) -> None:
    check_drafter(ON_TABLES[name], SHORT)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("model", marks=pytest.mark.slow),  # on a table by default
        pytest.param("early exit", marks=pytest.mark.slow),  # a `Model` of the first layers
        pytest.param("mixed", marks=pytest.mark.slow),  # on tables by default
        pytest.param("quantized", marks=pytest.mark.slow),  # a `Model` of a copy that it makes
    ],
)
def test_on_a_transformers_model(name: str) -> None:
    check_drafter(ON_TRANSFORMERS[name], target())


class Saying(Quiet):
    """A drafter out of one function; what it returns is broken somehow."""

    def __init__(self, guess: Callable[[Turn], Guess]) -> None:
        self.say = guess

    def guess(self, turn: Turn) -> Guess:
        return self.say(turn)


class Counting(Saying):
    """Its guesses depend on how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def guess(self, turn: Turn) -> Guess:
        self.asked += 1
        return Guess([self.asked % 7] * min(1, turn.budget))


class Forgetless(Quiet):
    """Remembers the last text of anybody."""

    def start(self, *args: Any) -> list[list[int]]:
        return [[]]

    def enter(self, state: Any, *text: Any) -> None: ...

    def release(self, state: Any, row: int) -> None: ...

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return [Guess(state[0][: turn.height]) for turn in turns]

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        state[0] = [*state[0], *outcomes[-1].tokens][-5:]


class Gossiping(Suffix):
    """Is told of owners and does not care."""

    def assign(self, state: Any, row: int, owner: str) -> None: ...


class Lying(Model):
    """Claims a flatter law than it draws from."""

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        found = super().propose(state, turns, shared_noise=shared_noise)
        return [
            guess if guess.probs is None else replace(guess, probs=np.full_like(guess.probs, 1 / 7))
            for guess in found
        ]


class Peeping(Model):
    """Draws with the target's noise and calls it its own."""

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        shared = super().propose(state, turns, shared_noise=True)
        if shared_noise:
            return shared
        own = super().propose(state, turns, shared_noise=False)
        pairs = zip(own, shared, strict=True)
        return [replace(one, tokens=other.tokens) for one, other in pairs]


class Remembering(Quiet):
    """Keeps its guesses until it hears what became of them: the accepted ones are in the text."""

    def guess(self, turn: TextTurn) -> Guess:
        generator = np.random.default_rng(list(turn.tokens))
        tokens = generator.permutation(7 * turn.budget)[: turn.budget] % 7
        if turn.is_chain:
            return Guess(tokens.tolist())
        parents = np.where(np.arange(turn.budget) < 3, -1, generator.integers(-1, 3, turn.budget))
        return Guess(
            tokens.tolist(), parents=(parents if turn.height > 1 else parents * 0 - 1).tolist()
        )

    def start(self, *args: Any) -> Any:
        texts = super().start(*args)
        texts.guesses = {}
        return texts

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        found = super().propose(state, turns, shared_noise=shared_noise)
        state.guesses |= {turn.row: guess for turn, guess in zip(turns, found, strict=True)}
        return found

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        for outcome in outcomes:
            guess = state.guesses.pop(outcome.row, Guess())
            self.look(guess, outcome)

    def look(self, guess: Guess, outcome: Outcome) -> None:
        before = ROOT
        for node, token in zip(outcome.path, outcome.tokens, strict=False):
            parents = guess.parents or range(-1, len(guess.tokens) - 1)
            assert guess.tokens[node] == token, f"node {node} of {guess} is not {token}"
            assert parents[node] == before, f"node {node} of {guess} does not follow {before}"
            before = node


class Certain(Remembering):
    """Takes it for granted that all of a guess is scored."""

    def look(self, guess: Guess, outcome: Outcome) -> None:
        assert outcome.num_scored == len(guess.tokens)


def test_accepted_nodes_are_those_of_the_guess_whatever_was_dropped() -> None:
    """Under every draft length, the rows of a batch and a tree that lost some of its nodes."""
    check_drafter(Remembering, SHORT)


class Silent(Quiet):
    """Forgets to return anything."""

    def propose(self, *_: Any, **__: Any) -> Any:
        return None


class Nameless:
    """Has every method and no name."""

    start, enter, propose = Quiet.start, Quiet.enter, Quiet.propose
    observe, release = Quiet.observe, Quiet.release


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "too many": (
        lambda: Saying(lambda t: Guess([1] * (t.budget + 1))),
        "its budget. Received . tokens. Wanted: . at",
    ),
    "unknown": (lambda: Saying(lambda t: Guess([7] * t.budget)), "keeps to the vocabulary"),
    "deep": (
        lambda: Saying(lambda t: Guess([1] * t.budget)),
        "its depth. Received . in a row. Wanted: . at",
    ),
    "wide": (
        lambda: Saying(lambda t: Guess([1] * t.budget, parents=[-1] * t.budget)),
        "gives a chain where one is wanted",
    ),
    "orphan": (lambda: Saying(lambda t: Guess([1] * t.budget, parents=[])), "every token a parent"),
    "sure": (
        lambda: Saying(lambda t: Guess([1][: t.budget], values=[2.0][: t.budget])),
        "gives each token a chance",
    ),
    "shared": (
        lambda: Saying(lambda t: Guess([1][: t.budget], Drawn.SHARED)),
        "draws with noise of its own, unpruned",
    ),
    "lawless": (
        lambda: Saying(lambda t: Guess([1][: t.budget], Drawn.SAMPLED)),
        "gives the distribution of each token",
    ),
    "seedy": (
        lambda: Saying(lambda t: Guess([t.seed % 7][: t.budget])),
        "guesses by the text alone",
    ),
    "counting": (Counting, "keeps requests apart"),
    "forgetless": (Forgetless, "keeps requests apart"),
    "gossiping": (Gossiping, "guesses nothing from another owner's texts"),
    "lying": (lambda: Lying(OTHER), "draws from the distribution it claims"),
    "peeping": (lambda: Peeping(OTHER), "draws with noise of its own"),
    "certain": (Certain, "does not fail"),
    "silent": (Silent, "returns a list of Guess from `propose`. Received None"),
    "raw": (lambda: Saying(lambda t: [1]), "returns a list of Guess.*Received .'list'"),  # type: ignore[arg-type, return-value]
    "nameless": (Nameless, "has a `name`. Received Nameless"),
    "failing": (lambda: Saying(lambda t: 1 / 0), "does not fail"),  # type: ignore[arg-type, return-value]
}


@pytest.mark.filterwarnings("error:.*The text is not affected:RuntimeWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    """Raised once, and not warned of as well."""
    make, message = BROKEN[name]
    prompts = [[1]] if name in ("lying", "peeping") else None  # what is checked last comes sooner
    with pytest.raises(BrokenPromise, match=message) as told:
        check_drafter(make, TABLE, prompts=prompts)
    assert str(told.value).count("A drafter ") == 1  # the finding, not the engine's note of it
    assert str(told.value).count("division by zero") <= 1


def test_what_is_no_drafter_is_told_before_it_runs() -> None:
    class Half:
        name = "half"

        def start(self, *_: Any) -> None: ...

    missing = "Received Half without enter, propose, observe, release"
    with pytest.raises(fr.InputError, match=missing):
        check_drafter(Half, TABLE)  # type: ignore[arg-type]
    with pytest.raises(fr.InputError, match=r"a function that makes one: lambda: NGram\("):
        check_drafter(NGram(), TABLE)  # type: ignore[arg-type]


def test_a_memory_outside_the_state_is_found() -> None:
    """One object for two engines: the second run differs from the first."""
    one = Counting()
    with pytest.raises(BrokenPromise, match="repeats itself"):
        check_drafter(lambda: one, TABLE)


def test_no_seed_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for greedy requests either: a drafter that draws by the seed guesses alike every time."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: pytest.fail("a seed was drawn"))
    check_drafter(Quiet, TABLE)
