"""Lines drawn in compiled code against the same lines drawn level by level in Python."""

from __future__ import annotations

import random
from typing import Any

import array_api_compat as compat
import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from test_heads_lean_runner import VOCAB_SIZE, lean_runner, network

from forerun.drafters.base import Turn
from forerun.lean.line import MOST_RACERS, REACH, exponential, racers
from forerun.lean.plan import MOST_TOKENS
from forerun.noise.race import exponentials, seed_key
from forerun.sampling.options import Sampling

XP = compat.array_namespace(np.empty(0))
IDS = np.sort(np.random.default_rng(0).permutation(VOCAB_SIZE)[:40])
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8),
    Sampling(temperature=1.5, top_k=3),
    Sampling(temperature=1.0, top_p=0.5),
    Sampling(temperature=1.0, min_p=0.2),
    Sampling(temperature=2.0, top_k=9, top_p=0.9, min_p=0.01),
]


def by_hand(logits: Any, turn: Turn, level: int) -> tuple[int, float]:
    """The guess after one level and its chance, from the definitions."""
    s = turn.sampling
    if s.temperature == 0:
        law = np.exp(logits - logits.max())
        return int(IDS[logits.argmax()]), float(law.max() / law.sum())
    law = np.exp((logits.astype(np.float64) - logits.max()) / s.temperature)
    law[law < np.exp(-REACH)] = 0
    order = np.argsort(-law, kind="stable")
    kept = law[order] / law[order][: s.top_k or None].sum()
    kept[s.top_k or len(kept) :] = 0
    inside = (np.cumsum(kept) - kept < s.top_p) & (law[order] >= s.min_p)
    law[order] *= inside * (kept > 0)
    key = seed_key(XP, [turn.seed], None)
    noise = exponentials(XP, key, np.array([turn.position + level]), IDS[None])[0]
    speed = law / noise
    return int(IDS[speed.argmax()]), float(speed.max() / speed.sum())


def turn_of(row: int, sampling: Sampling, budget: int, worth: float = 0.0) -> Turn:
    seed, position = 7 + 2**40 * row, 2**33 + 5
    least = [1.5 * worth, 1.2 * worth]
    return Turn(row, budget, sampling, seed, position, worth=worth, goes_on=least)


def features(counts: list[int], seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    pick = random.Random(seed)
    return [torch.randn(count, 96) for count in counts], [
        [pick.randrange(VOCAB_SIZE) for _ in range(count)] for count in counts
    ]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("worth", [0.0, 0.05])
@pytest.mark.parametrize("first", [3, MOST_TOKENS + 9])
def test_lines_are_what_levels_give(first: int, worth: float, num_threads: int) -> None:
    """Ragged rows, one of each way of sampling; again after more text, guesses being forgotten."""
    lean = lean_runner(network(), num_threads)
    rows = list(range(len(SAMPLINGS)))
    state, other = lean.start(len(rows), 400), lean.start(len(rows), 400)
    lengths = set()
    for turn_number, counts in enumerate([[first, 1, 2, 5, 1, 8], [1, 2, 3, 1, 1, 4]]):
        states, tokens = features(counts, turn_number)
        turns = [turn_of(row, SAMPLINGS[row], 1 + row, worth) for row in rows]
        logits, lines = lean.extend_with_lines(state, rows, states, tokens, turns, IDS)
        level_logits = lean.extend(other, rows, states, tokens)
        np.testing.assert_array_equal(logits, level_logits)
        for row, turn in enumerate(turns):
            wanted, chances, chance, own = [], [], 1.0, level_logits[row]
            for level in range(turn.budget):
                token, share = by_hand(own, turn, level)
                chance *= share
                if chance < worth:
                    break
                wanted.append(token)
                chances.append(chance)
                if chance < dict(enumerate(turn.goes_on)).get(level, 0.0):
                    break
                own = lean.step(other, [row], [level - 1], [token])[0]
            assert lines[row][0] == wanted
            assert lines[row][1] == pytest.approx(chances, rel=1e-4)
            lengths.add(len(wanted))
    assert len(lengths) > 2


def test_a_row_without_room_gets_nothing_and_disturbs_nobody() -> None:
    lean = lean_runner(network(), 2)
    states, tokens = features([4, 3], 0)
    alone = lean.start(2, 20)
    _, (only,) = lean.extend_with_lines(
        alone, [1], states[1:], tokens[1:], [turn_of(1, SAMPLINGS[0], 6)], IDS
    )
    state = lean.start(2, 20)
    turns = [turn_of(0, SAMPLINGS[1], 0), turn_of(1, SAMPLINGS[0], 6)]
    _, (nothing, same) = lean.extend_with_lines(state, [0, 1], states, tokens, turns, IDS)
    assert nothing == ([], [])
    assert same == only


def test_noise_is_the_target_s() -> None:
    generator = np.random.default_rng(3)
    tokens = np.concatenate([np.arange(600), generator.integers(2**20, size=2000)])
    for seed, position in [(0, 0), (5, 17), (2**64 - 1, 2**40 + 3)]:
        key = seed_key(XP, [seed], None)
        wanted = exponentials(XP, key, np.array([position]), tokens[None])[0]
        low, high = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
        found = [exponential(low, high, position, token) for token in tokens]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 40, 5000])
def test_racers_are_the_likeliest(size: int) -> None:
    logits = np.random.default_rng(size).normal(size=size).astype(np.float32)
    columns, laws = np.empty(MOST_RACERS, np.int64), np.empty(MOST_RACERS)
    count = racers(logits, 1.0, columns, laws)
    assert 0 < count <= MOST_RACERS
    assert columns[:count].tolist() == np.argsort(-logits, kind="stable")[:count].tolist()
    np.testing.assert_allclose(laws[:count], np.exp(logits[columns[:count]] - logits.max()), 1e-6)


def test_a_crowd_of_equals_races_too() -> None:
    columns, laws = np.empty(MOST_RACERS, np.int64), np.empty(MOST_RACERS)
    assert racers(np.zeros(1000, np.float32), 1.0, columns, laws) == MOST_RACERS
    assert (laws == 1).all()
