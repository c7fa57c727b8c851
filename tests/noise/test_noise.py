"""Addressed randomness: the same bits everywhere, the right laws, and no address used twice.

Statistical tests have fixed seeds, so they pass or fail for good.  Where odds are stated they are
those of a correct implementation failing over the choice of the seed.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_all
from forerun.base.arrays import BLOCK, to_numpy
from forerun.base.errors import InputError
from forerun.noise import race as noise
from forerun.noise.race import Purpose, race_row
from libraries import Library, largest_bias, largest_distance, load

NUMPY = load("numpy")
LLAMA = 128_256


# --- addresses ---------------------------------------------------------------------------------


def test_uniforms_are_never_0_or_1(lib: Library) -> None:
    """The two extreme words, where a careless scaling rounds onto the ends."""
    words = lib.xp.asarray([0, 0xFFFFFFFF], dtype=noise.word_dtype(lib.xp))
    low, high = (float(value) for value in noise._to_unit(lib.xp, words))
    assert 0 < low <= 2.0**-32
    assert 1 - 2.0**-23 <= high < 1
    exponentials = to_numpy(noise._exponential(lib.xp, noise._to_unit(lib.xp, words)))
    assert np.all(exponentials > 0)
    assert np.all(np.isfinite(exponentials))


def test_the_same_bits_in_every_library(lib: Library) -> None:
    """Words are equal bit by bit; numbers are equal, or rounded where float32 is all there is."""
    tokens, positions = np.arange(1000), np.array([0, 1, 77, 2**31 - 1])[:, None]
    for purpose in Purpose:
        key = noise.seed_key(lib.xp, [2**63 + 12345], None)[:, :, :, None]
        found = noise._words(lib.xp, key, lib.array(positions), lib.array(tokens)[None, :], purpose)
        key = noise.seed_key(NUMPY.xp, [2**63 + 12345], None)[:, :, :, None]
        wanted = noise._words(NUMPY.xp, key, positions, tokens[None, :], purpose)
        for ours, reference in zip(found, wanted, strict=True):
            assert np.array_equal(to_numpy(ours).astype(np.uint64), reference)
    unit = to_numpy(
        noise.uniform(9, lib.array(positions), lib.array(tokens), Purpose.DRAFT, xp=lib.xp)
    )
    exact = noise.uniform(9, positions, tokens, Purpose.DRAFT)
    assert np.array_equal(unit, exact) or (
        unit.dtype == np.float32 and np.abs(unit - exact).max() <= 2.0**-24
    )


def test_numbers_do_not_depend_on_how_many_are_asked_for(lib: Library) -> None:
    """A few are computed one by one, many as an array, a row four at a time: all alike."""
    tokens = np.arange(noise.FEW + 25)
    many = to_numpy(noise.uniform(3, 5, lib.array(tokens), Purpose.TARGET, xp=lib.xp))
    single = [float(noise.uniform(3, 5, int(t), Purpose.TARGET, xp=lib.xp)) for t in tokens]
    assert many.tolist() == single
    row = noise.uniform_row(3, 5, len(tokens), Purpose.TARGET)
    assert np.abs(row - many).max() <= (0 if many.dtype == np.float64 else 2.0**-24)


def test_no_two_addresses_share_bits() -> None:
    """128 bits at each of 9,216 addresses: an accidental collision has odds below 1e-30."""
    seeds = [0, 1, 2**32, 2**64 - 1]  # differing in the low or only in the high word
    positions = [0, 1, 2**32, 2**32 + 1]
    seen: set[tuple[int, ...]] = set()
    for seed, position, purpose in itertools.product(seeds, positions, Purpose):
        key = noise.seed_key(NUMPY.xp, [seed], None)
        words = noise._words(NUMPY.xp, key, np.array([position]), np.arange(96), purpose)
        seen.update(zip(*(word.tolist() for word in words), strict=True))
    assert len(Purpose) == 6
    assert len(seen) == len(seeds) * len(positions) * len(Purpose) * 96


def test_neighbouring_tokens_use_different_words() -> None:
    """Four tokens share a counter; each has a word of it to itself."""
    tokens = noise.uniform_row(1, 2, 4096, Purpose.TARGET)
    assert len(np.unique(tokens)) == 4096  # a chance collision has odds 4096**2 / 2**33 = 0.2%


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_must_fit_64_bits(seed: int) -> None:
    with pytest.raises(InputError, match=rf"64 bits.*{seed}.*2\*\*64 - 1"):
        noise.uniform(seed, 0, 0, Purpose.TARGET)


def test_folded_seeds_are_new_seeds() -> None:
    assert noise.fold(42, 0) == 42
    folded = {noise.fold(seed, index) for seed in range(20) for index in range(1, 50)}
    assert len(folded) == 20 * 49
    assert all(0 <= seed < 2**64 for seed in folded)
    assert max(folded) > 2**63  # both words are used; 980 small ones have odds 2**-980


def test_coins_of_different_rounds_and_slots_differ(lib: Library) -> None:
    key = noise.seed_key(lib.xp, [4, 4, 5], None)
    coins = noise.coin(lib.xp, key, lib.array([0, 1, 0]), list(range(9)), Purpose.ACCEPT)
    assert len(np.unique(to_numpy(coins))) == 27
    alone = noise.coin(lib.xp, key[:, :, 1:2], lib.array([1]), [3], Purpose.ACCEPT)
    assert float(alone[0, 0]) == float(coins[1, 3])


# --- exponentials ------------------------------------------------------------------------------

ODDS = 1e-9  # of each statistical test below failing for a correct implementation


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    """The noise of 4,000 positions on two blocks of the vocabulary, (4000, 512)."""
    count = 4000
    key = noise.seed_key(NUMPY.xp, [2024], None)
    tokens = np.broadcast_to(np.arange(2 * BLOCK), (count, 2 * BLOCK))
    repeated = np.broadcast_to(key, (*key.shape[:2], count))
    return noise.exponentials(NUMPY.xp, repeated, np.arange(count), tokens)


def distance(sample: np.ndarray, cdf: Any) -> float:
    """Kolmogorov's distance of a sample from a law."""
    ordered = cdf(np.sort(sample, axis=None))
    steps = np.arange(ordered.size + 1) / ordered.size
    return max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1]))


def exponential_cdf(x: np.ndarray) -> np.ndarray:
    return -np.expm1(-x)


def test_every_exponential_has_rate_1(table: np.ndarray) -> None:
    """The limit, 0.0023, is below the 0.0039 that forgetting the block's minimum would cost."""
    assert distance(table, exponential_cdf) <= largest_distance(table.size, ODDS)


@pytest.mark.parametrize("lane", [0, 17, 255, 256, 511])
def test_one_lane_over_many_positions_has_rate_1(table: np.ndarray, lane: int) -> None:
    assert distance(table[:, lane], exponential_cdf) <= largest_distance(len(table), ODDS)


def test_the_minimum_of_a_block_has_rate_256_and_any_lane(table: np.ndarray) -> None:
    blocks = table.reshape(-1, BLOCK)
    limit = largest_distance(len(blocks), ODDS)
    assert distance(blocks.min(axis=1) * BLOCK, exponential_cdf) <= limit
    lanes = np.bincount(blocks.argmin(axis=1), minlength=BLOCK) / len(blocks)
    assert np.abs(np.cumsum(lanes) - np.arange(1, BLOCK + 1) / BLOCK).max() <= limit


@pytest.mark.parametrize("how", ["lanes", "blocks", "positions"])
def test_exponentials_are_independent(table: np.ndarray, how: str) -> None:
    """Of two independent exponentials the smaller has rate 2 and their ratio is uniform."""
    first, second = {
        "lanes": (table[:, 0::2], table[:, 1::2]),
        "blocks": (table[:, :BLOCK], table[:, BLOCK:]),
        "positions": (table[0::2], table[1::2]),
    }[how]
    limit = largest_distance(first.size, ODDS)
    assert distance(2 * np.minimum(first, second), exponential_cdf) <= limit
    assert distance(first / (first + second), lambda x: x) <= limit


def test_seeds_give_independent_noise() -> None:
    keys = noise.seed_key(NUMPY.xp, [7, 8], None)
    tokens = np.broadcast_to(np.arange(50_000), (2, 50_000))
    first, second = noise.exponentials(NUMPY.xp, keys, np.array([3, 3]), tokens)
    limit = largest_distance(first.size, ODDS)
    assert distance(first / (first + second), lambda x: x) <= limit


def test_the_noise_of_a_token_does_not_depend_on_what_else_is_asked(lib: Library) -> None:
    key = noise.seed_key(lib.xp, [1], None)
    some = noise.exponentials(lib.xp, key, lib.array([8]), lib.array([[5, 700, 257]]))
    every = noise.exponentials(lib.xp, key, lib.array([8]), lib.array(np.arange(1000)[None]))
    assert to_numpy(some)[0].tolist() == to_numpy(every)[0, [5, 700, 257]].tolist()


# --- the race ----------------------------------------------------------------------------------


def weights_of(kind: str, num_rows: int, width: int, dtype: Any) -> np.ndarray:
    """Rows that stress the race: flat, peaky, with zeros, one-hot, tiny or without normaliser."""
    rng = np.random.default_rng([width, num_rows, len(kind)])
    made = {
        "flat": lambda: np.ones((num_rows, width)) / width,
        "random": lambda: rng.dirichlet(np.ones(width), num_rows),
        "peaky": lambda: rng.random((num_rows, width)) ** 40,
        "zeros": lambda: rng.random((num_rows, width)) * (rng.random((num_rows, width)) < 0.05),
        "certain": lambda: np.eye(width)[rng.integers(width, size=num_rows)],
        "tiny": lambda: rng.random((num_rows, width)) * 1e-30,
        "huge": lambda: rng.random((num_rows, width)) * 1e30,
    }[kind]()
    made[np.arange(num_rows), rng.integers(width, size=num_rows)] += made.max() or 1.0
    return made.astype(dtype)


@for_all("kind", ["flat", "random", "peaky", "zeros", "certain", "tiny", "huge"])
@for_all("width", [1, 2, 3, 200, 256, 257, 300, 511, 1000, 5120])
@for_all("dtype", ["float32", "float64"])
def test_the_race_is_the_argmin_over_all_tokens(width: int, kind: str, dtype: str) -> None:
    """Leaving tokens out is only for speed.  Twelve rows each, with seeds and positions apart."""
    weights = weights_of(kind, 12, width, dtype)
    key, positions = noise.seed_key(NUMPY.xp, list(range(12)), None), np.arange(12) * 1000
    found = noise.race(NUMPY.xp, weights, key, positions)
    assert np.array_equal(found, slow_race(NUMPY, weights, key, positions))


@for_all("kind", ["flat", "random", "peaky", "zeros"])
@for_all("width", [3, 300, 512])
def test_the_race_is_the_argmin_in_every_library(lib: Library, width: int, kind: str) -> None:
    weights = lib.array(weights_of(kind, 6, width, "float32"))
    key, positions = noise.seed_key(lib.xp, [5] * 6, None), lib.array(np.arange(6))
    found = noise.race(lib.xp, weights, key, positions)
    assert np.array_equal(to_numpy(found), slow_race(lib, weights, key, positions))


@pytest.mark.parametrize("kind", ["flat", "random", "peaky", "zeros"])
def test_the_race_over_a_large_vocabulary(kind: str) -> None:
    weights = weights_of(kind, 3, LLAMA, "float32")
    key, positions = noise.seed_key(NUMPY.xp, [1, 2, 3], None), np.array([0, 9, 2**33])
    found = noise.race(NUMPY.xp, weights, key, positions)
    assert np.array_equal(found, slow_race(NUMPY, weights, key, positions))


def slow_race(lib: Library, weights: Any, key: Any, positions: Any) -> np.ndarray:
    """Noise for every token, one division, one argmin."""
    tokens = lib.array(np.broadcast_to(np.arange(weights.shape[1]), tuple(weights.shape)))
    noises = to_numpy(noise.exponentials(lib.xp, key, positions, tokens))
    weights = to_numpy(weights).astype(noises.dtype)
    with np.errstate(divide="ignore", over="ignore"):
        return np.argmin(np.where(weights > 0, noises / weights, np.inf), axis=1)


def test_the_race_opens_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes it cheap: a typical row draws noise for a handful of its 128,256 tokens."""
    drawn: list[int] = []
    original = noise.lane_noise

    def counting(xp: Any, key: Any, positions: Any, tokens: Any, *rest: Any) -> Any:
        drawn.append(tokens.shape[0])
        return original(xp, key, positions, tokens, *rest)

    monkeypatch.setattr(noise, "lane_noise", counting)
    ranks = np.random.default_rng(0).permutation(LLAMA) + 1.0
    weights = (ranks**-1.5 / (ranks**-1.5).sum()).astype(np.float32)[None]
    for seed in range(20):
        noise.race(NUMPY.xp, weights, noise.seed_key(NUMPY.xp, [seed], None), np.array([seed]))
    assert sum(drawn) / 20 < 1000


@pytest.mark.parametrize("width", [5, 700])
def test_race_frequencies_follow_the_law(width: int) -> None:
    """A correct race fails with probability 1e-9 at most; a bias of 2% is caught in turn."""
    count, cells = 100_000 if width == 5 else 20_000, 5
    law = np.random.default_rng(1).dirichlet(np.ones(width) / 3)
    key = noise.seed_key(NUMPY.xp, [11], None)
    counts = np.zeros(cells)
    for start in range(0, count, 5000):
        keys, positions = (
            np.broadcast_to(key, (*key.shape[:2], 5000)),
            np.arange(start, start + 5000),
        )
        won = noise.race(NUMPY.xp, np.broadcast_to(law, (5000, width)), keys, positions)
        counts += np.bincount(won % cells, minlength=cells)
    wanted = np.bincount(np.arange(width) % cells, weights=law, minlength=cells)
    assert np.abs(counts / count - wanted).sum() / 2 <= largest_bias(cells, count, ODDS)


def test_a_row_wins_alone_as_it_does_in_a_batch(lib: Library) -> None:
    weights = weights_of("random", 40, 300, "float32")
    key, positions = noise.seed_key(lib.xp, list(range(40)), None), lib.array(np.arange(40) * 3)
    together = to_numpy(noise.race(lib.xp, lib.array(weights), key, positions))
    for row in (0, 13, 39):
        part = slice(row, row + 1)
        alone = noise.race(lib.xp, lib.array(weights[part]), key[:, :, part], positions[part])
        assert int(alone[0]) == together[row]


# --- inverse-CDF draws -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 5, 256, 300, 1000, 5120])
def test_draw_turns_at_the_exact_breakpoints(lib: Library, width: int) -> None:
    """Dyadic weights have exact running sums, so each breakpoint is tried just below and at it."""
    rng = np.random.default_rng(width)
    counts = rng.multinomial(1024, rng.dirichlet(np.full(width, 0.1)))
    weights = (counts / 1024).astype(lib.widest)
    edges = np.unique(np.cumsum(counts)[counts > 0] / 1024).astype(lib.widest)
    inner = edges[:-1]
    units = np.concatenate([[2.0**-33], np.nextafter(edges, 0, dtype=lib.widest), inner])
    units = units.astype(lib.widest)
    found = noise.draw(
        lib.xp, lib.array(np.broadcast_to(weights, (len(units), width))), lib.array(units)
    )
    expected = np.searchsorted(np.cumsum(counts) / 1024, units.astype(np.float64), side="right")
    assert np.array_equal(to_numpy(found), expected)
    assert np.all(weights[to_numpy(found)] > 0)


@given(
    width=st.integers(1, 700),
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0.0, 0.99),
    unit=st.sampled_from([2.0**-33, 0.5, 1 - 2.0**-33, float(np.nextafter(1, 0))]),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=300, deadline=None)
def test_draw_never_picks_a_token_of_weight_0(
    width: int, seed: int, share: float, unit: float, dtype: str
) -> None:
    """At the ends of the unit interval, where rounding carries the aim past the last weight."""
    rng = np.random.default_rng(seed)
    weights = (rng.random((4, width)) ** 8 * (rng.random((4, width)) >= share)).astype(dtype)
    weights[:, rng.integers(width)] = rng.random()
    found = noise.draw(NUMPY.xp, weights, np.array([unit, unit, rng.random(), rng.random()]))
    assert np.all(weights[np.arange(4), found] > 0)


def test_draw_needs_no_normaliser(lib: Library) -> None:
    weights = np.array([[1, 0, 2, 5]] * 4)
    units = lib.array(np.array([0.1, 0.124, 0.126, 0.9], dtype=lib.widest))
    for scale in (0.125, 1.0, 2.0**40):
        scaled = lib.array((weights * scale).astype(np.float32))
        assert to_numpy(noise.draw(lib.xp, scaled, units)).tolist() == [0, 0, 2, 3]


def test_draw_does_not_drift_over_a_large_vocabulary() -> None:
    """A running float32 sum over 128,256 terms is off by 1e-4; ours finds the median's place."""
    rng = np.random.default_rng(3)
    weights = rng.random((1, LLAMA), dtype=np.float32)
    weights /= weights.sum()
    for unit in (0.25, 0.5, 0.75, 0.999):
        token = int(noise.draw(NUMPY.xp, weights, np.array([unit]))[0])
        exact = weights[0].astype(np.float64)
        below, above = exact[:token].sum() / exact.sum(), exact[: token + 1].sum() / exact.sum()
        assert below - 3e-8 <= unit <= above + 3e-8


def as_it_is(weights: Any) -> Any:
    return weights


@for_all("width", [3, 256, 300, 1000, 49152])
@for_all("sharpness", [0.0, 1.0, 4.0])
def test_a_race_with_known_minima_has_the_same_winner(width: int, sharpness: float) -> None:
    """For every position of 40, over flat and peaky rows with impossible tokens in them."""
    generator = np.random.default_rng(width)
    key = noise.seed_key(NUMPY.xp, [1 << 40 | width], None)
    positions = np.arange(7, 47)
    minimum, lane = noise.block_minima(NUMPY.xp, key, positions, width)
    for index, position in enumerate(positions.tolist()):
        weights = np.exp(sharpness * generator.normal(size=width)).astype(np.float32)
        weights[generator.random(width) < 0.2] = 0.0
        weights[index % width] = 1.0
        (wanted,) = noise.race(NUMPY.xp, weights[None, :], key, positions[index : index + 1])
        assert race_row(weights, as_it_is, key, position, minimum[index], lane[index]) == wanted
