"""Every closed form against enumeration, another formula, or a simulation with stated odds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_all
from forerun import theory
from forerun.base.errors import InputError

EXACT = 1e-12
LAW = [0.5, 0.3, 0.2]
OTHER = [0.2, 0.2, 0.6]


def random_pair(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two laws over 2 to 7 tokens, often with zeros, sometimes equal or without overlap."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 8))
    p, q = rng.dirichlet(np.full(size, 0.5), 2)
    kind = seed % 5
    if kind == 1:
        q = p.copy()
    elif kind == 2:  # disjoint supports
        p, q = p * (np.arange(size) < 1), q * (np.arange(size) >= 1)
    elif kind == 3:  # a hole in each, and a token that neither wants
        p, q = np.append(p, [0.0, 0.3, 0.0]), np.append(q, [0.4, 0.0, 0.0])
    elif kind == 4:  # a probability that all but vanishes
        p, q = np.append(p, 1e-300), np.append(q, 1e-12)
    return p / p.sum(), q / q.sum()


# --- overlap ---------------------------------------------------------------------------------


@for_all("seed", range(60))
def test_acceptance_and_distance_share_one_token_between_them(seed: int) -> None:
    p, q = random_pair(seed)
    by_hand = math.fsum(min(a, b) for a, b in zip(p, q, strict=True))
    assert theory.acceptance(p, q) == pytest.approx(by_hand, abs=EXACT)
    assert theory.total_variation(p, q) == pytest.approx(1 - by_hand, abs=EXACT)
    assert theory.total_variation(p, q) == pytest.approx(abs(p - q).sum() / 2, abs=EXACT)


def test_rows_keep_their_leading_axes() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), (2, 3)), rng.dirichlet(np.ones(5), (2, 3))
    for name in ("acceptance", "total_variation", "match_acceptance", "gumbel_acceptance"):
        batched = getattr(theory, name)(p, q)
        assert batched.shape == (2, 3)
        assert batched[1, 2] == getattr(theory, name)(p[1, 2], q[1, 2])
    assert theory.transport_bound(p, q[0, 0], 2).shape == (2, 3)  # one draft row for all


@for_all("seed", range(100))
def test_gumbel_acceptance_equals_the_quadratic_sum(seed: int) -> None:
    p, q = random_pair(seed)
    shared = (p > 0) & (q > 0)
    direct = math.fsum(
        1 / math.fsum(max(p[i] / p[j], q[i] / q[j]) for i in range(len(p)))
        for j in np.flatnonzero(shared)
    )
    value = theory.gumbel_acceptance(p, q)
    low, high = theory.gumbel_bounds(p, q)
    assert value == pytest.approx(direct, abs=EXACT)
    assert low - EXACT <= value <= high + EXACT


def test_gumbel_acceptance_is_what_two_races_on_one_noise_do() -> None:
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(12), 2)
    rate, n = theory.gumbel_acceptance(p, q), 200_000
    noise = rng.exponential(size=(n, 12))
    agree = ((noise / p).argmin(axis=1) == (noise / q).argmin(axis=1)).mean()
    # Five standard errors: a correct formula fails for one seed in 1.7 million.
    assert abs(agree - rate) < 5 * math.sqrt(rate * (1 - rate) / n)


def test_equal_laws_always_agree_and_disjoint_ones_never() -> None:
    eye = np.eye(4)
    assert theory.gumbel_acceptance(LAW, LAW) == pytest.approx(1, abs=EXACT)
    assert theory.gumbel_acceptance(eye[0], eye[1]) == 0
    assert theory.acceptance(eye[0], eye[1]) == 0
    assert theory.total_variation(eye[0], eye[1]) == 1


def test_gumbel_acceptance_of_a_real_vocabulary_is_quick_and_within_bounds() -> None:
    rng = np.random.default_rng(2)
    logits = rng.gumbel(size=128_256) * 2
    p = np.exp(logits - logits.max())
    q = np.exp(logits + rng.normal(size=len(p)) - logits.max())
    p, q = p / p.sum(), q / q.sum()
    low, high = theory.gumbel_bounds(p, q)
    assert low <= theory.gumbel_acceptance(p, q) <= high


@for_all("seed", range(40))
@for_all("num_drafts", [1, 2, 3])
def test_transport_bound_is_the_smallest_cut_of_all_subsets(seed: int, num_drafts: int) -> None:
    p, q = random_pair(seed)
    cuts = [
        sum(p[list(h)]) + 1 - sum(q[list(h)]) ** num_drafts
        for size in range(len(p) + 1)
        for h in itertools.combinations(range(len(p)), size)
    ]
    bound = theory.transport_bound(p, q, num_drafts)
    assert bound == pytest.approx(min(cuts), abs=EXACT)
    assert bound >= theory.acceptance(p, q) - EXACT
    if num_drafts == 1:
        assert bound == pytest.approx(theory.acceptance(p, q), abs=EXACT)


@for_all("seed", range(20))
def test_retrying_with_fresh_drafts_never_beats_the_transport_bound(seed: int) -> None:
    p, q = random_pair(seed)
    accepted, owed = 0.0, p
    for num_drafts in range(1, 5):
        accepted += (1 - accepted) * np.minimum(owed, q).sum()
        assert accepted <= theory.transport_bound(p, q, num_drafts) + EXACT
        left = np.maximum(owed - q, 0)
        if left.sum() < 1e-9:
            break
        owed = left / left.sum()


def test_match_acceptance_of_a_one_hot_draft_is_the_point_mass_rule() -> None:
    for token in range(3):
        one_hot = np.eye(3)[token]
        assert theory.match_acceptance(LAW, one_hot) == pytest.approx(LAW[token], abs=EXACT)
        assert theory.point_mass_acceptance(LAW, token) == pytest.approx(LAW[token], abs=EXACT)
    rows = np.array([LAW, OTHER])
    assert np.allclose(theory.point_mass_acceptance(rows, [0, 2]), [0.5, 0.6], atol=EXACT)
    assert theory.match_acceptance(LAW, OTHER) == pytest.approx(0.28, abs=EXACT)


# --- rounds ----------------------------------------------------------------------------------


def enumerate_rounds(rates: list[float]) -> np.ndarray:
    """P(num_accepted = k) by walking all 2^K outcomes of the coins."""
    law = np.zeros(len(rates) + 1)
    for coins in itertools.product([True, False], repeat=len(rates)):
        chance = math.prod(a if c else 1 - a for a, c in zip(rates, coins, strict=True))
        law[[*coins, False].index(False)] += chance
    return law


@given(st.lists(st.floats(0, 1), max_size=7))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rounds_equal_the_enumeration_of_all_coins(rates: list[float]) -> None:
    law = enumerate_rounds(rates)
    assert np.allclose(theory.accepted_length_law(rates), law, atol=EXACT)
    assert theory.tokens_per_round(rates) == pytest.approx(1 + law @ range(len(law)), abs=EXACT)
    assert np.allclose(theory.survival(rates), 1 - law.cumsum()[:-1], atol=EXACT)


@pytest.mark.parametrize("draft_length", [0, 1, 5, 40])
def test_one_rate_gives_the_geometric_formula_and_its_exact_ends(draft_length: int) -> None:
    assert theory.tokens_per_round(0.0, draft_length) == 1
    assert theory.tokens_per_round(1.0, draft_length) == draft_length + 1
    closed = (1 - 0.8 ** (draft_length + 1)) / 0.2
    assert theory.tokens_per_round(0.8, draft_length) == pytest.approx(closed, abs=EXACT)


def test_listed_rates_are_cut_to_the_draft_length_and_batched() -> None:
    assert theory.tokens_per_round([0.5, 0.5, 1.0], 2) == 1.75
    assert np.array_equal(theory.tokens_per_round([[1.0, 1.0], [0.0, 1.0]]), [3.0, 1.0])


def test_shared_difficulty_gives_the_moments_of_its_beta_law() -> None:
    # Mean .7 and standard deviation .1 is Beta(14, 6), whose moments are products of ratios.
    moments = np.cumprod([(14 + k) / (20 + k) for k in range(5)])
    assert np.allclose(theory.survival(theory.difficulty_rates(0.7, 0.1, 5)), moments, atol=EXACT)
    constant, mild, strong = (
        float(theory.tokens_per_round(theory.difficulty_rates(0.7, spread, 5)))
        for spread in (0.0, 0.1, 0.2)
    )
    assert (round(constant, 2), round(mild, 2), round(strong, 2)) == (2.94, 3.03, 3.29)


def path_average(rule: str, p: np.ndarray, q: np.ndarray, length: int) -> float:
    """Expected accepted tokens of a rule when every position has the laws p and q."""
    total = 0.0
    for path in itertools.product(range(len(p)), repeat=length):
        ids = list(path)
        if (chance := q[ids].prod()) > 0:
            total += chance * getattr(theory, rule)(p[ids], q[ids]).sum()
    return total


def test_block_and_ratio_on_the_two_token_example() -> None:
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    assert path_average("ratio_survival", p, q, 2) == pytest.approx(10 / 9, abs=EXACT)
    assert path_average("block_survival", p, q, 2) == pytest.approx(11 / 9, abs=EXACT)


@for_all("seed", range(20))
def test_ratio_survival_averages_to_the_overlap_and_block_dominates_it(seed: int) -> None:
    p, q = random_pair(seed)
    expected = theory.tokens_per_round(theory.acceptance(p, q), 3) - 1
    assert path_average("ratio_survival", p, q, 3) == pytest.approx(expected, abs=EXACT)
    support = np.flatnonzero(q)
    paths = np.random.default_rng(seed).choice(support, size=(50, 6))
    block = theory.block_survival(p[paths], q[paths])
    assert block.shape == (50, 6)
    assert np.all(block >= theory.ratio_survival(p[paths], q[paths]) - EXACT)


# --- speed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "draft_cost", "length", "gain"),
    [
        (0.6, 0.05, 4, 1.92),
        (0.7, 0.05, 6, 2.35),
        (0.8, 0.05, 8, 3.09),
        (0.9, 0.05, 13, 4.67),
        (0.8, 0.01, 14, 4.23),
        (0.8, 0.10, 6, 2.47),
        (0.8, 0.20, 4, 1.87),
    ],
)
def test_best_draft_lengths_of_the_textbook_table(
    rate: float, draft_cost: float, length: int, gain: float
) -> None:
    choice = theory.best_draft_length(rate, draft_cost)
    assert choice.draft_length == length
    assert round(choice.speedup, 2) == gain


@for_all("seed", range(30))
def test_best_draft_length_is_the_best_of_a_scan_and_of_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates, costs = rng.uniform(0.2, 1, 9), [1.0, *np.cumsum(rng.uniform(0, 0.4, 9)) + 1]
    draft_cost, overhead = rng.uniform(0, 0.4, 2)
    tokens = [1 + sum(math.prod(rates[:k]) for k in range(1, n + 1)) for n in range(10)]
    gains = [1.0] + [tokens[k] / (k * draft_cost + costs[k] + overhead) for k in range(1, 10)]
    choice = theory.best_draft_length(rates, draft_cost, costs, overhead)
    assert choice.draft_length == int(np.argmax(gains))
    for k, gain in enumerate(gains):
        value = theory.speedup(rates, k, draft_cost, costs, overhead)
        assert value == pytest.approx(gain, abs=EXACT)
        if k < 9:
            pays = theory.extension_pays(rates, k, draft_cost, costs, overhead)
            assert pays == (gains[k + 1] > gain)


def test_target_costs_as_a_number_a_list_and_a_function_agree() -> None:
    costs = [1.0, 1.5, 1.5, 1.5]
    by_list = theory.speedup(0.8, 3, 0.1, costs)
    assert theory.speedup(0.8, 3, 0.1, 1.5) == by_list
    assert theory.speedup(0.8, 3, 0.1, lambda tokens: costs[tokens - 1]) == by_list
    assert theory.best_draft_length(0.8, 0.1, costs).draft_length <= 3


def test_do_not_speculate_when_it_cannot_pay() -> None:
    assert theory.best_draft_length(0.3, 0.4) == (0, 1.0)
    assert theory.best_draft_length(0.0, 0.0) == (0, 1.0)
    # One draft pays exactly when the rate exceeds what it costs.
    assert theory.speedup(0.31, 1, 0.2, [1.0, 1.1]) > 1 > theory.speedup(0.29, 1, 0.2, [1.0, 1.1])
    assert theory.best_draft_length(0.9, 0.05, overhead=10.0) == (0, 1.0)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.acceptance([0.5, 0.5], LAW), "vocabularies differ"),
        (lambda: theory.acceptance([[0.5, 0.5]] * 2, [[0.5, 0.5]] * 3), "do not pair up"),
        (lambda: theory.acceptance([1.5, -0.5], [0.5, 0.5]), "negative"),
        (lambda: theory.acceptance([0.5, 0.6], [0.5, 0.5]), "sum 1.1"),
        (lambda: theory.acceptance([0.5, np.nan], [0.5, 0.5]), "1 NaN or inf"),
        (lambda: theory.acceptance(1.0, 1.0), "no vocabulary"),
        (lambda: theory.acceptance("law", LAW), "not numeric"),
        (lambda: theory.transport_bound(LAW, LAW, 0), "num_drafts is too small"),
        (lambda: theory.point_mass_acceptance(LAW, 3), "from 0 to 2"),
        (lambda: theory.point_mass_acceptance(LAW, 0.5), "integers"),
        (lambda: theory.point_mass_acceptance(LAW, [0, 1]), "One token per row"),
        (lambda: theory.tokens_per_round(1.2, 3), "[0, 1]"),
        (lambda: theory.tokens_per_round(80, 3), "80% as 0.8"),
        (lambda: theory.tokens_per_round(0.8), "needs a draft_length"),
        (lambda: theory.tokens_per_round(0.8, -1), "draft_length is too small"),
        (lambda: theory.tokens_per_round(0.8, 2.5), "is a count"),
        (lambda: theory.tokens_per_round([0.8, 0.7], 3), "at most 2"),
        (lambda: theory.difficulty_rates(0.7, 0.6, 3), "below 0.458"),
        (lambda: theory.block_survival([0.5], [0.0]), "really drawn from"),
        (lambda: theory.block_survival([0.5], [0.5, 0.5]), "line up"),
        (lambda: theory.speedup(0.8, 3, -0.1), "zero or more"),
        (lambda: theory.speedup(0.8, 3, 0.1, 0.0), "above zero"),
        (lambda: theory.speedup(0.8, 3, 0.1, [1.0, 1.1]), "over 3 tokens"),
        (lambda: theory.speedup(0.8, 1, 0.1, [47.0, 95.0]), "Divide all of them"),
        (lambda: theory.speedup([[0.8]], 1, 0.1), "many drafters"),
        (lambda: theory.best_draft_length(0.8, 0.1, []), "over 1 tokens"),
    ],
)
def test_nonsense_is_refused_with_a_cure(call, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


def test_rounding_of_low_precision_rows_is_forgiven() -> None:
    row = np.array(LAW, dtype=np.float16)
    assert theory.acceptance(row, row) == pytest.approx(1, abs=EXACT)
