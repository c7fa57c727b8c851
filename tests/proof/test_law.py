"""Exact laws against formulas and enumerations that share no code with them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun import rules
from forerun.noise.addresses import Address, Addressing, Purpose
from forerun.proof import standard_cases
from forerun.proof.branches import every_path
from forerun.proof.broken import drafts_by_position
from forerun.proof.cases import contextual
from forerun.proof.chance import Chance
from forerun.proof.law import Prefix, expected_accepted, joint, rule_step
from forerun.rules.base import Residual
from forerun.rules.block import Block, survivals

EXACT = 1e-12
P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.2, 0.6])


def test_the_targets_law_is_the_product_of_its_rows() -> None:
    model = contextual(3, 5)
    found = fr.target_law(model, 3)
    assert found.shape == (3, 3, 3)
    for tokens in itertools.product(range(3), repeat=3):
        chance = np.prod([model(tokens[:i])[tokens[i]] for i in range(3)])
        assert found[tokens] == pytest.approx(chance, abs=EXACT)


@pytest.mark.parametrize("lenience", [0.25, 0.5, 1.0])
def test_a_lossy_law_is_the_one_on_paper(lenience: float) -> None:
    """min(q, p / l) accepted, the rest from (p / l - q)+: a law that is wrong in a known way."""
    accepted = np.minimum(Q, P / lenience)
    owed = np.maximum(P / lenience - Q, 0)
    wanted = accepted + (1 - accepted.sum()) * owed / owed.sum()
    rule = rules.get("lenient", lenience=lenience)
    found = fr.law(rule, P[None], Q[None], length=1)
    assert found == pytest.approx(wanted, abs=EXACT)
    assert (np.abs(found - P).max() < EXACT) == (lenience == 1.0)


def test_the_law_of_threshold_on_paper() -> None:
    """p = 0.5 passes the bar, so a drafter that always says 0 gets its way."""
    found = fr.law("threshold", P[None], np.array([[1.0, 0, 0]]), length=1, drawn="point")
    assert found == pytest.approx([1.0, 0.0, 0.0], abs=EXACT)


@pytest.mark.parametrize("rule", rules.names())
def test_a_law_has_mass_1_over_the_tokens_asked_for(rule: str) -> None:
    found = fr.law(rule, np.array([P, Q, P]), np.array([Q, P]))
    assert found.shape == (3,) * 3  # K + 1 by default
    assert found.sum() == pytest.approx(1.0, abs=EXACT)
    longer = fr.law(rule, np.array([P, Q, P]), np.array([Q, P]), length=4)
    assert longer.sum(axis=3) == pytest.approx(found, abs=EXACT)


def test_rows_given_by_position_repeat_the_last() -> None:
    found = fr.target_law(np.array([P, Q]), 3)
    assert found == pytest.approx(np.einsum("i,j,k", P, Q, Q), abs=EXACT)


def test_expected_acceptance_of_one_token() -> None:
    assert expected_accepted("match", P[None], Q[None], 1) == pytest.approx((P * Q).sum())
    assert expected_accepted("ratio", P[None], Q[None], 1) == pytest.approx(np.minimum(P, Q).sum())


def test_the_draft_length_may_follow_the_text() -> None:
    """A law-only rule that is told K by what was emitted, not by what was drafted."""
    seen: set[tuple[Prefix, int]] = set()

    def lengths(prefix: Prefix) -> int:
        count = len(prefix) % 2 + 1
        seen.add((prefix, count))
        return count

    model = contextual(2, 9)
    found = fr.law("block", model, contextual(2, 10), draft_length=lengths, length=3)
    assert found == pytest.approx(fr.target_law(model, 3), abs=EXACT)
    assert {count for _, count in seen} == {1, 2}


@pytest.mark.parametrize("most", [20, 2**12])
@pytest.mark.parametrize("rule", rules.names())
def test_a_round_after_many_prefixes_is_a_round_after_each(
    rule: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 drafts a prefix: those of two prefixes at a time, or all, are followed together."""
    monkeypatch.setattr(import_module("forerun.proof.law"), "MAX_ROWS", most)
    step = rule_step(rule, contextual(3, 1, zeros=0.3), contextual(3, 2), "sampled")
    prefixes: list[Prefix] = [(0,), (1,), (2,)]
    found = step(prefixes, 2)
    assert len(found) == len(prefixes)
    for prefix, emission in zip(prefixes, found, strict=True):
        (alone,) = step([prefix], 2)
        assert emission == pytest.approx(alone, abs=EXACT)


def test_bad_arguments() -> None:
    with pytest.raises(fr.InputError, match=r"K is not known.*draft_length=K"):
        fr.law("match", P[None], contextual(3, 1))
    with pytest.raises(fr.InputError, match=r"target rows have a wrong shape.*\(3,\).*\(N, V\)"):
        fr.law("match", P, Q[None])
    with pytest.raises(fr.InputError, match=r"drawn is not known.*'guessed'"):
        fr.law("match", P[None], Q[None], drawn="guessed")
    with pytest.raises(fr.InputError, match="does not sum to 1"):
        fr.law("match", 2 * P[None], Q[None])


# --- numbers that rounds share -----------------------------------------------------------------


@dataclass(frozen=True)
class OneCoin(Block):
    """Block verification with one coin per slot, as most write it."""

    name: str = "one coin a slot"

    def decide(self, trial: Any, noise: Any) -> Any:
        pi = survivals(trial)
        kept, undecided = np.zeros_like(trial.lengths), trial.lengths > 0
        for count in range(trial.tokens.shape[1], 0, -1):
            chance = pi[:, count].copy()
            inner = (trial.lengths > count) & (chance < 1)
            rows, slots = trial.everyone[inner], np.full(inner.sum(), count)
            owed = chance[inner][:, None] * trial.target.take(rows, slots)
            missing = np.maximum(owed - trial.draft.take(rows, slots), 0).sum(axis=1)
            chance[inner] = missing / (missing + 1 - chance[inner])
            passed = undecided & noise.coins([count - 1], chance[:, None])[:, 0]
            kept, undecided = np.where(passed, count, kept), undecided & ~passed
        scale = np.take_along_axis(pi, kept[:, None], axis=1)[:, 0]
        return kept, noise.draw(Residual(trial, kept, scale))


def by_position(*purposes: Purpose) -> Addressing:
    def place(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
        return (first + slot, 0) if purpose in purposes else (first, slot)

    return place


@pytest.mark.parametrize(
    ("purposes", "draft", "drawn", "bias"),
    [
        ((), [0.1, 0.6, 0.3], "sampled", 0.0),
        ((Purpose.ACCEPT,), [0.1, 0.6, 0.3], "sampled", 0.0564),
        ((Purpose.DRAFT,), [0.1, 0.6, 0.3], "sampled", 0.0228),
        ((Purpose.ACCEPT, Purpose.DRAFT), [0.1, 0.6, 0.3], "sampled", 0.0587),
        ((Purpose.ACCEPT,), [1.0, 0.0, 0.0], "point", 0.0972),
    ],
)
def test_numbers_addressed_by_position_bias_block(
    purposes: tuple[Purpose, ...], draft: list[float], drawn: str, bias: float
) -> None:
    """As a serving engine has it; a million texts there gave 0.058, 0.060 and 0.098.

    (For coins alone, both, and drafts of the target's likeliest token.  Frequencies of a million
    texts are about 0.0015 from their own law.)
    """
    target = np.array([[0.5, 0.3, 0.2]])
    found = fr.law(
        OneCoin(),
        target,
        np.array([draft]),
        draft_length=2,
        length=3,
        drawn=drawn,
        addressing=by_position(*purposes),
    )
    assert found.sum() == pytest.approx(1, abs=EXACT)
    assert np.abs(found - fr.target_law(target, 3)).sum() / 2 == pytest.approx(bias, abs=1e-4)


def rounds(rng: Any, target: Any, draft: Any, shared: tuple[Purpose, ...]) -> tuple[int, ...]:
    """Block verification of two tokens, round after round, its numbers kept in a table."""
    numbers: dict[tuple[Purpose, int, int], Any] = {}
    text: list[int] = []

    def number(purpose: Purpose, slot: int) -> Any:
        place = (len(text) + slot, 0) if purpose in shared else (len(text), slot)
        return numbers.setdefault((purpose, *place), rng.random())

    while len(text) < 3:
        drafted = [
            next((t for t in (0, 1) if number(Purpose.DRAFT, slot) < draft[: t + 1].sum()), 2)
            for slot in range(2)
        ]
        debts = [1.0]
        for token in drafted:
            debts.append(min(debts[-1] * target[token] / draft[token], 1.0))
        for kept in (2, 1, 0):
            owed = np.maximum(debts[kept] * target - (0 if kept == 2 else draft), 0.0)
            missing = owed.sum()
            chance = debts[2] if kept == 2 else missing / (missing + 1 - debts[kept])
            if kept == 0 or number(Purpose.ACCEPT, kept - 1) < chance:
                break
        text += [*drafted[:kept], int(rng.choice(3, p=owed / owed.sum()))]
    return tuple(text[:3])


@pytest.mark.parametrize(
    "shared", [(), (Purpose.ACCEPT,), (Purpose.DRAFT,), (Purpose.ACCEPT, Purpose.DRAFT)]
)
def test_shared_numbers_are_followed_as_a_table_of_them_says(shared: tuple[Purpose, ...]) -> None:
    """Against an enumeration that shares no code with `law`: every text's chance, to 1e-12."""
    target, draft = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    wanted = np.zeros((3, 3, 3))

    def run(path: Any) -> tuple[tuple[int, ...], float]:
        rng = Chance(path)
        return rounds(rng, target, draft, shared), rng.weight

    for text, weight in every_path(run):
        wanted[text] += weight
    found = fr.law(
        OneCoin(), target[None], draft[None], draft_length=2, length=3,
        addressing=by_position(*shared),
    )  # fmt: skip
    assert found == pytest.approx(wanted, abs=EXACT)


def test_the_ratio_rule_does_not_mind_coins_by_position() -> None:
    """It never looks past its first refusal, but it asks, so the address is met twice."""
    target, draft = contextual(3, 1), contextual(3, 2)
    step = rule_step("ratio", target, draft, "sampled", by_position(Purpose.ACCEPT))
    found = joint(step, 3, 3, 2)
    assert found == pytest.approx(fr.target_law(target, 3), abs=EXACT)
    assert step.reused == {Address(Purpose.ACCEPT, 1, 0), Address(Purpose.ACCEPT, 2, 0)}


@pytest.mark.parametrize("rule", rules.names())
def test_our_own_addresses_are_met_once(rule: str) -> None:
    step = rule_step(rule, contextual(2, 1), contextual(2, 2), "sampled")
    joint(step, 2, 4, 2)
    assert step.reused == set()


def test_a_drafted_token_met_again_is_the_same_token() -> None:
    """Nothing is ever kept of a draft that the target finds impossible; the draft repeats."""
    target, draft = np.array([[1.0, 0, 0]]), np.array([[0.0, 0.5, 0.5]])
    step = rule_step(
        "block", lambda _: target[0], lambda _: draft[0], "sampled", drafts_by_position
    )
    ((first, known), *_) = step([()], 2)[0]
    assert first == (0,)
    ((address, (low, high)),) = known
    assert address == Address(Purpose.DRAFT, 1, 0)
    assert high - low == 0.5
    (again,) = step([first], 2, known)
    assert len(again) == 2, "one first token, two second ones"


@dataclass(frozen=True)
class RacesAhead:
    """Races a position that it does not emit."""

    name: str = "races ahead"
    lossless: bool = True
    needs_draft_probs: bool = False
    judges_trees: bool = False

    def decide(self, trial: Any, noise: Any) -> Any:
        zero = np.zeros_like(trial.lengths)
        law = trial.target.take(trial.everyone, zero)
        tokens = noise.race(law, trial.everyone, zero)
        noise.race(law, trial.everyone, zero + 1)
        return zero, tokens


def test_a_race_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(fr.UnsupportedError, match=r"raced twice.*position 1"):
        fr.law(RacesAhead(), P[None], Q[None], length=2)
    found = fr.certify(RacesAhead(), cases=itertools.islice(standard_cases(), 1))
    assert "address met twice: TARGET at (1, 0)" in str(found)
