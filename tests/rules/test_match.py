"""`match`: the text is the target's own sample, whoever drafts, however far, in whatever batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import array_api_compat as compat
import numpy as np
import pytest

import forerun as fr
from forerun import theory
from forerun.noise import race as noise
from instances import random_instance, sample
from libraries import Library

XP = compat.array_namespace(np.empty(0))
SEEDS = list(range(20))
LENGTH = 24
VOCAB_SIZE = 11

rng = np.random.default_rng(12)
MODEL = rng.dirichlet(np.full(VOCAB_SIZE, 0.4), (VOCAB_SIZE, VOCAB_SIZE))  # by the last two tokens
MODEL[:, 3, 5] = 0.0  # never 5 after 3
MODEL /= MODEL.sum(axis=-1, keepdims=True)
GOOD = 0.7 * MODEL + 0.3 * rng.dirichlet(np.full(VOCAB_SIZE, 0.4), MODEL.shape[:2])
START = (0, 1)

Text = list[int]
Drafter = Callable[[Text, int, int], Text]
"""(text so far, seed, K) -> K guesses."""


def row(table: np.ndarray, text: Text) -> np.ndarray:
    before = [*START, *text]
    return table[before[-2], before[-1]]


def shared(text: Text, seed: int, count: int) -> Text:
    """Races a good imitation of the target under the target's own noise."""
    guess: Text = []
    key = noise.seed_key(XP, [seed], None)
    for _ in range(count):
        here = np.array([len(text) + len(guess)])
        guess.append(int(noise.race(XP, row(GOOD, text + guess)[None], key, here)[0]))
    return guess


def independent(text: Text, seed: int, count: int) -> Text:
    """Samples the same imitation with randomness that has nothing to do with the seed."""
    guess: Text = []
    for _ in range(count):
        guess.append(int(sample(rng, row(GOOD, text + guess)[None])[0]))
    return guess


def repeating(text: Text, seed: int, count: int) -> Text:
    """Says again what was said before, impossible continuations included."""
    return ([*START, *text] * count)[-count:]


def plain(seed: int) -> Text:
    """The target alone: rounds without guesses."""
    text: Text = []
    while len(text) < LENGTH:
        law = row(MODEL, text)[None, None]
        text += fr.verify(fr.Draft.point([[]]), law, seed=seed, positions=[len(text)]).tokens()[0]
    return text


@pytest.fixture(scope="module")
def alone() -> dict[int, Text]:
    return {seed: plain(seed) for seed in SEEDS}


@pytest.mark.parametrize("draft_length", [1, pytest.param(3, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("drafter", [shared, independent, repeating])
def test_the_text_does_not_depend_on_the_drafter(
    alone: dict[int, Text], drafter: Drafter, draft_length: int
) -> None:
    """Twenty seeds at once, each at its own place in its own text: no token may differ."""
    texts: dict[int, Text] = {seed: [] for seed in SEEDS}
    rounds = 0
    while live := [seed for seed in SEEDS if len(texts[seed]) < LENGTH]:
        guesses = [drafter(texts[seed], seed, draft_length) for seed in live]
        laws = [
            [row(MODEL, texts[seed] + guess[:slot]) for slot in range(draft_length + 1)]
            for seed, guess in zip(live, guesses, strict=True)
        ]
        verdict = fr.verify(
            fr.Draft.point(guesses),
            np.array(laws),
            seed=live,
            positions=[len(texts[seed]) for seed in live],
        )
        for seed, emitted in zip(live, verdict.tokens(), strict=True):
            texts[seed] += emitted
        rounds += len(live)
    assert {seed: text[:LENGTH] for seed, text in texts.items()} == alone
    if drafter is shared:  # and the guesses did save rounds
        assert rounds < 0.8 * LENGTH * len(SEEDS)


def test_seeds_give_different_texts(alone: dict[int, Text]) -> None:
    """Two of these 24-token texts agree with odds below 1e-9."""
    assert len({tuple(text) for text in alone.values()}) == len(SEEDS)


def test_drafts_under_the_targets_noise_are_accepted_as_often_as_theory_says() -> None:
    """Over 20,000 positions; a correct rule fails with probability 1e-9 at most (Hoeffding)."""
    count = 20_000
    target, draft = np.random.default_rng(3).dirichlet(np.full(6, 0.6), 2)
    key = noise.seed_key(XP, [9], None)
    keys, positions = np.broadcast_to(key, (*key.shape[:2], count)), np.arange(count)
    guess = noise.race(XP, np.broadcast_to(draft, (count, 6)), keys, positions)
    verdict = fr.verify(
        fr.Draft.shared(guess[:, None]),
        np.broadcast_to(target, (count, 2, 6)),
        seed=[9] * count,
        positions=positions,
    )
    expected = float(theory.gumbel_acceptance(target, draft))
    overlap = np.minimum(target, draft).sum()
    assert overlap / (2 - overlap) <= expected <= overlap
    margin = math.sqrt(math.log(2e9) / (2 * count))
    assert abs(np.mean(verdict.num_accepted) - expected) <= margin


def test_what_is_drafted_cannot_move_the_extra_token(lib: Library) -> None:
    """The token after the accepted run is the target's sample there, for any guess at all."""
    made = random_instance(21, 30, 3, 60, np.float32)
    target = lib.array(made.target)
    seeds = list(range(30))
    own = [
        fr.verify(
            fr.Draft.point(lib.array(np.zeros((30, 0), dtype=np.int64))),
            target[:, slot : slot + 1, :],
            seed=seeds,
            positions=[slot] * 30,
        ).extra
        for slot in range(4)
    ]
    for shift in range(3):
        tokens = lib.xp.stack([(own[slot] + shift * slot) % 60 for slot in range(3)], axis=1)
        verdict = fr.verify(fr.Draft.point(tokens), target, seed=seeds)
        for index, emitted in enumerate(verdict.tokens()):
            assert emitted == [int(own[slot][index]) for slot in range(len(emitted))]
        kept = {0: 3, 1: 1, 2: 1}[shift]
        assert (
            int(lib.xp.min(verdict.num_accepted)) == int(lib.xp.max(verdict.num_accepted)) == kept
        )
