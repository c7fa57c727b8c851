"""Nodes that the engine leaves out of a tree do not change the numbers of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from forerun.drafters import EarlyExit, Model, Outcome, Quantized
from forerun.drafters.passing_on import PassingOn
from forerun.engine.proposal import Proposal, worthwhile
from forerun.engine.steering.policy import PayingPolicy
from forerun.trees.tree import Tree

MODEL = Architecture("llama", "crop").build()
TARGET = fr.wrap(MODEL)
DRAFTERS: dict[str, Callable[[], Any]] = {
    "the target itself": lambda: Model(MODEL),
    "a noisy copy": lambda: Model(noisy_copy(MODEL, 0.1)),
    "early exit": lambda: EarlyExit(1),
    "quantized": Quantized,
}


@pytest.fixture
def at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes a random share of every tree, as it may when prices say so."""
    generator, choose = np.random.default_rng(0), PayingPolicy.choose

    class SomeOfThem:
        def among(self, asked: Sequence[int]) -> SomeOfThem:
            return self

        def trim(self, drafts: Sequence[Proposal]) -> list[Proposal]:
            chances = [draft.values or [0.0] * len(draft.tokens) for draft in drafts]
            bars = [float(generator.choice(row or [0.0])) for row in chances]
            return [worthwhile(*which) for which in zip(drafts, bars, chances, strict=True)]

    def choose_some(*asked: Any, **how: Any) -> Any:
        return choose(*asked, **how)._replace(tariff=SomeOfThem())  # type: ignore[arg-type]

    monkeypatch.setattr(PayingPolicy, "choose", choose_some)


def test_a_node_keeps_the_number_its_drafter_gave_it() -> None:
    tree = Tree((-1, -1, 0, 1, 1))
    draft = Proposal([5, 6, 7, 8, 9], tree=tree, values=[0.3, 0.9, 0.2, 0.1, 0.8])
    assert draft.values is not None
    pruned = worthwhile(draft, 0.5, draft.values)
    assert (pruned.tokens, pruned.tree) == ([6, 9], None)
    assert pruned.in_guess([0, 1]) == [1, 4]
    twice = worthwhile(pruned, 0.85, [0.9, 0.8])
    assert (twice.tokens, twice.in_guess([0])) == ([6], [1])
    assert draft.in_guess([1, 4]) == [1, 4]


class Reporting(PassingOn):
    """Checks that the accepted nodes are those whose tokens came into the text."""

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> Any:
        guesses = super().propose(state, turns, shared_noise=shared_noise)
        self.guesses = {turn.row: guess for turn, guess in zip(turns, guesses, strict=True)}
        return guesses

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.path:  # of rounds before the first guess there is none
                guess = self.guesses[outcome.row]
                tokens = [guess.tokens[node] for node in outcome.path]
                kept = list(outcome.tokens[: len(tokens)])
                assert kept == tokens[: len(kept)]
        super().observe(state, outcomes)


@pytest.mark.usefixtures("at_random")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("a noisy copy", "early exit") else pytest.mark.slow)
        for name in DRAFTERS  # the others are a `Model` too
    ],
)
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
def test_drafters_follow_pruned_trees(name: str, temperature: float) -> None:
    """Their caches keep the branch that was accepted: no failure, and the same text."""
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    how: dict[str, Any] = {
        "sampling": fr.Sampling(temperature=temperature, seed=2),
        "max_new_tokens": 24,
        "batch_size": 2,
    }
    plain = fr.generate(TARGET, prompts, drafter=None, **how)
    drafter = Reporting(DRAFTERS[name]())
    outs = fr.generate(TARGET, prompts, drafter=drafter, tree=8, **how)
    assert [out.stats.notes for out in outs] == [[], [], []]
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert sum(out.stats.drafted for out in outs) > 0
    if name == "the target itself":
        for out in outs:
            rounds = zip(out.stats.drafted_by_round, out.stats.accepted_by_round, strict=True)
            assert all(accepted for drafted, accepted in list(rounds)[:-1] if drafted)
