"""Every lossless rule has the target's joint law: exactly by enumeration, and as it really runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import forerun as fr
from cases import for_all
from forerun import rules
from forerun.proof import Case, edge_cases, standard_cases
from forerun.proof.cases import certain, contextual, mixed, restricted
from forerun.proof.law import Model, Prefix, joint, rule_step, target_law
from instances import sample
from libraries import largest_bias

LOSSLESS = rules.names(lossless=True)
EXACT = 1e-12


def error(rule: str, target: Model, draft: Model, lengths: Any, length: int, drawn: str) -> float:
    """The largest difference between a rule's joint law and the target's."""
    step = rule_step(rule, target, draft, drawn)
    found = joint(step, len(target(())), length, lengths)
    return float(np.abs(found - target_law(target, length)).max())


def test_the_lossless_rules_are_these() -> None:
    assert LOSSLESS == ["match", "ratio", "block", "siblings", "traversal"]
    assert [name for name in rules.names() if rules.get(name).needs_draft_probs] == [
        "ratio",
        "block",
        "siblings",
        "traversal",
        "lenient",
    ]
    assert [name for name in rules.names() if rules.get(name).judges_trees] == [
        "match",
        "siblings",
        "traversal",
    ]


@pytest.mark.parametrize("name", rules.names())
@pytest.mark.parametrize("promise", ["name", "lossless", "needs_draft_probs", "judges_trees"])
def test_what_a_rule_promises_is_no_setting(name: str, promise: str) -> None:
    """`Match(lossless=False)` was an object like any other, and `Typical(lossless=True)` too."""
    rule = rules.get(name)
    value = getattr(rule, promise)
    with pytest.raises(TypeError, match=promise):
        type(rule)(**{promise: not value})
    with pytest.raises(TypeError, match=promise):
        replace(rule, **{promise: not value})  # type: ignore[type-var]
    with pytest.raises(fr.InputError, match=f"{name} has no such setting.*belongs to its class"):
        rules.get(name, **{promise: not value})
    assert getattr(rules.get(name), promise) == value


@for_all("drawn", ["sampled", "point"])
@for_all("case", [*standard_cases(), *edge_cases()])
@pytest.mark.parametrize("rule", LOSSLESS)
def test_standard_cases(rule: str, case: Case, drawn: str) -> None:
    assert error(rule, case.target, case.draft, case.draft_length, case.length, drawn) <= EXACT


@pytest.mark.parametrize("rule", LOSSLESS)
def test_random_instances(rule: str) -> None:
    """Forty worlds of every make: zeros, equal laws, none in common, certainties."""
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        vocab_size = int(rng.integers(2, 5))
        draft_length = int(rng.integers(1, 5 if vocab_size < 4 else 4))
        zeros = [0.0, 0.5][seed % 2]
        target = contextual(vocab_size, 100 + seed, zeros=zeros, sharpness=1 + seed % 3)
        other = contextual(vocab_size, 200 + seed, zeros=zeros)
        draft = [
            other,
            mixed(target, other, 0.6),
            target,
            certain(other),
            restricted(contextual(vocab_size, 300 + seed), 0),
        ][seed % 5]
        drawn = "point" if seed % 7 == 0 else "sampled"

        def one_round(prefix: Prefix, draft_length: int = draft_length) -> int:
            return 0 if prefix else draft_length  # then the target goes on alone

        worst = max(worst, error(rule, target, draft, one_round, draft_length + 1, drawn))
    assert worst <= EXACT


@pytest.mark.parametrize("rule", LOSSLESS)
def test_several_rounds_with_a_draft_length_that_follows_the_text(rule: str) -> None:
    target, draft = contextual(3, 40), mixed(contextual(3, 40), contextual(3, 41), 0.4)

    def lengths(prefix: Prefix) -> int:
        return (sum(prefix) + len(prefix)) % 3

    assert error(rule, target, draft, lengths, 5, "sampled") <= EXACT


@pytest.mark.parametrize("rule", LOSSLESS)
def test_an_end_of_text_that_absorbs(rule: str) -> None:
    """After token 0 the target says nothing else; the drafter does not know that."""
    base, draft = contextual(3, 50), contextual(3, 51)

    def target(prefix: Prefix) -> np.ndarray:
        return np.array([1.0, 0.0, 0.0]) if 0 in prefix else base(prefix)

    assert error(rule, target, draft, 3, 4, "sampled") <= EXACT
    assert error(rule, target, draft, 1, 4, "sampled") <= EXACT


@pytest.mark.parametrize("drawn", ["sampled", "point"])
@pytest.mark.parametrize("rule", LOSSLESS)
def test_the_law_of_verify_itself(rule: str, drawn: str) -> None:
    """With Philox instead of enumeration: the joint law of three tokens over 30,000 rounds.

    Each round has a seed of its own, a draft drawn by NumPy, and is completed by the target.  A
    correct rule fails with probability 1e-9 at most; a bias of 0.037 is caught but for 1e-3.
    """
    rng, count, size = np.random.default_rng(7), 30_000, 3
    target = rng.dirichlet(np.ones(size), (size, size, 3))  # by the two tokens before, and depth
    draft = 0.5 * target + 0.5 * rng.dirichlet(np.ones(size), (size, size, 3))
    start = np.zeros((count, 2), dtype=np.int64)

    def rows(table: np.ndarray, text: np.ndarray) -> np.ndarray:
        return table[text[:, -2], text[:, -1], text.shape[1] - 2]

    text, laws = start, []
    for _ in range(2):
        laws.append(rows(draft, text))
        guess = sample(rng, laws[-1]) if drawn == "sampled" else np.argmax(laws[-1], axis=1)
        text = np.concatenate([text, guess[:, None]], axis=1)
    scored = np.stack([rows(target, text[:, : 2 + depth]) for depth in range(3)], axis=1)
    made = (
        fr.Draft.sampled(text[:, 2:], np.stack(laws, axis=1))
        if drawn == "sampled"
        else fr.Draft.point(text[:, 2:])
    )
    verdict = fr.verify(made, scored, rule=rule, seed=list(range(count)))
    emitted = np.where(np.arange(2) < verdict.num_accepted[:, None], text[:, 2:], -1)
    emitted = np.concatenate([emitted, np.full((count, 1), -1)], axis=1)
    emitted[np.arange(count), verdict.num_accepted] = verdict.extra
    for depth in range(1, 3):  # rounds that stopped early go on with the target's own tokens
        open_ = emitted[:, depth] < 0
        before = np.concatenate([start, emitted], axis=1)[:, : 2 + depth]
        emitted[open_, depth] = sample(rng, rows(target, before[open_]))
    found = np.zeros((size,) * 3)
    np.add.at(found, tuple(emitted.T), 1 / count)
    wanted = np.array(
        [
            [target[0, 0, 0, a] * target[0, a, 1, b] * target[a, b, 2] for b in range(size)]
            for a in range(size)
        ]
    )
    assert np.abs(found - wanted).sum() / 2 <= largest_bias(size**3, count, 1e-9)


class Refuse:
    """A rule of one's own, in a few lines: keep nothing, let the target speak."""

    name, lossless, needs_draft_probs, judges_trees = "refuse", True, False, True

    def decide(self, trial: Any, noise: Any) -> tuple[Any, Any]:
        nothing = trial.lengths * 0
        return nothing, noise.race(
            trial.target.take(trial.everyone, nothing), trial.everyone, nothing
        )


def test_a_rule_of_ones_own_is_verified_and_certified_like_ours() -> None:
    target = np.array([[[0.0, 1.0], [0.5, 0.5]]])
    verdict = fr.verify(fr.Draft.point([[1]]), target, rule=Refuse())
    assert (verdict.rule, verdict.tokens()) == ("refuse", [[1]])
    assert fr.certify(Refuse()).lossless
