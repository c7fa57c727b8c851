"""Simulated rounds against closed forms (with stated odds), replayed rounds exactly, and costs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from forerun import theory
from forerun.base.errors import InputError
from forerun.forecast import CostModel, MeasuredCosts, Roofline, replay, scan, simulate
from forerun.forecast.report import as_dict, draw_curve, render
from forerun.forecast.simulator import Z_95, Estimate, mean_interval

RECORDED = [3, 0, 4, 4, 1, 2, 4, 0, 0, 3]
H200 = Roofline(
    weight_bytes=16e9,
    bandwidth=0.8 * 4.8e12,
    compute=0.6 * 989e12,
    kv_bytes_per_token=128 * 1024,
    context=1024,
    attention_width=32 * 32 * 128,
)


def standard_errors_off(estimate: Estimate, truth: float) -> float:
    return abs(estimate.mean - truth) / ((estimate.high - estimate.low) / (2 * Z_95))


# --- rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acceptance", "spread"),
    [(0.3, 0.0), (0.8, 0.0), (0.7, 0.1), (0.7, 0.2), ([0.9, 0.8, 0.5, 0.9, 0.2], 0.0)],
)
def test_simulation_agrees_with_the_closed_forms(acceptance, spread: float) -> None:
    run = simulate(acceptance, spread=spread, draft_length=5, draft_cost=0.1, rounds=100_000)
    rates = theory.difficulty_rates(acceptance, spread, 5) if spread else acceptance
    # Five standard errors: right code fails for fewer than one seed in a million.
    assert standard_errors_off(run.tokens_per_round, theory.tokens_per_round(rates, 5)) < 5
    assert standard_errors_off(run.speedup, theory.speedup(rates, 5, 0.1)) < 5
    law = theory.accepted_length_law(rates, 5)
    seen = np.bincount(run.accepted, minlength=6) / 100_000
    assert np.all(abs(seen - law) <= 5 * np.sqrt(law * (1 - law) / 100_000))


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    truth = theory.tokens_per_round(0.8, 4)
    runs = [simulate(0.8, draft_length=4, draft_cost=0, rounds=400, seed=s) for s in range(400)]
    covered = sum(r.tokens_per_round.low <= truth <= r.tokens_per_round.high for r in runs)
    # Binomial(400, .95): below 358 or above 399 less than once in a million.
    assert 358 <= covered <= 399


def test_certain_rates_leave_nothing_to_chance() -> None:
    for rate, tokens in ((0.0, 1.0), (1.0, 7.0)):
        run = simulate(rate, draft_length=6, draft_cost=0.1, rounds=50)
        assert run.tokens_per_round == (tokens, tokens, tokens)


def test_the_seed_decides_everything_and_the_draft_length_only_cuts() -> None:
    def draw(seed: int, draft_length: int) -> np.ndarray:
        return simulate(
            0.8, draft_length=draft_length, draft_cost=0.1, seed=seed, rounds=500, spread=0.1
        ).accepted

    assert np.array_equal(draw(1, 8), draw(1, 8))
    assert not np.array_equal(draw(1, 8), draw(2, 8))
    assert np.array_equal(np.minimum(draw(1, 8), 3), draw(1, 3))


def test_plain_decoding_is_the_unit() -> None:
    run = simulate(0.8, draft_length=0, draft_cost=0.1, target_cost=H200, overhead=1.0, batch=8)
    assert run.speedup == (1.0, 1.0, 1.0)
    assert run.latency.mean == H200(8, 1)
    assert run.throughput.mean == pytest.approx(8 / H200(8, 1))


def test_latency_and_throughput_follow_from_tokens_and_costs() -> None:
    run = simulate(0.8, draft_length=4, draft_cost=0.05, target_cost=H200, batch=16, rounds=999)
    assert run.round_cost == pytest.approx(4 * 0.05 * H200(16, 1) + H200(16, 5))
    assert run.latency.mean == pytest.approx(run.round_cost / run.tokens_per_round.mean)
    assert run.throughput.mean == pytest.approx(16 / run.latency.mean)
    assert run.latency.low < run.latency.mean < run.latency.high
    assert run.throughput.low == pytest.approx(16 / run.latency.high)


def num_lines(rounds: int) -> int:
    """How many lines of Python a simulation runs; a line in a loop counts every time."""
    events: list[str] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        events.append(event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        simulate(0.8, draft_length=8, draft_cost=0.05, rounds=rounds, spread=0.1)
    finally:
        sys.settrace(before)
    return len(events)


def test_rounds_are_drawn_all_at_once() -> None:
    """A hundred thousand run no more lines of Python than a hundred."""
    assert num_lines(100_000) == num_lines(100) > 100


# --- replay ----------------------------------------------------------------------------------


def test_replay_reproduces_the_recording_exactly() -> None:
    run = replay(RECORDED, recorded_length=4, draft_cost=0.1)
    assert run.accepted.tolist() == RECORDED
    assert run.tokens_per_round.mean == 3.1
    assert run.speedup.mean == pytest.approx(3.1 / 1.4)


def test_replay_with_shorter_drafts_cuts_each_round() -> None:
    run = replay(RECORDED, recorded_length=4, draft_length=2, draft_cost=0.1)
    assert run.accepted.tolist() == [min(n, 2) for n in RECORDED]


def test_correlated_rounds_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    mixed = rng.integers(0, 5, 600)
    runs = np.repeat(rng.integers(0, 5, 60), 10)  # ten equal rounds in a row
    width = {}
    for name, lengths in (("mixed", mixed), ("runs", runs)):
        estimate = replay(lengths, recorded_length=4, draft_cost=0.1).tokens_per_round
        width[name] = estimate.high - estimate.low
    # Independent blocks of ten carry a tenth of the information: about sqrt(10) times wider,
    # of which a window of eight lags sees the better part.
    assert width["runs"] > 2 * width["mixed"]


def test_an_interval_stays_within_what_a_round_can_emit() -> None:
    assert mean_interval(np.array([3.0]), 1, 5) == (3, 1, 5)
    assert mean_interval(np.array([1.0, 5.0]), 1, 5) == (3, 1, 5)


# --- costs -----------------------------------------------------------------------------------


def test_roofline_speedups_of_an_8b_model_on_one_h200() -> None:
    costs = CostModel(draft_cost=0.05, target_cost=H200)
    tokens = theory.tokens_per_round(0.75, 4)
    expected = {1: 2.54, 64: 1.92, 128: 1.35, 256: 1.05, 512: 0.89}
    for batch, gain in expected.items():
        got = tokens * costs.plain(batch) / costs.round(batch, 4)
        assert got == pytest.approx(gain, abs=0.01)


def test_relative_costs_are_those_of_theory() -> None:
    costs = [1.0, 1.2, 1.3, 1.9]
    model = CostModel(0.1, costs, 0.25)
    for k in range(1, 4):
        gain = theory.tokens_per_round(0.8, k) / model.round(1, k)
        assert gain == pytest.approx(theory.speedup(0.8, k, 0.1, costs, 0.25), abs=1e-12)


def test_measured_costs_are_linear_in_between() -> None:
    measured = MeasuredCosts({(1, 1): 1.0, (1, 5): 3.0, (4, 1): 2.0, (4, 3): 4.0, (4, 5): 5.0})
    assert measured(1, 1) == 1.0
    assert measured(1, 3) == 2.0
    assert measured(4, 4) == 4.5
    assert measured(2, 3) == pytest.approx(2.0 + (4.0 - 2.0) / 3)


def test_a_drafter_can_be_a_machine_of_its_own() -> None:
    drafter = Roofline(weight_bytes=2e9, bandwidth=1e12, compute=1e15)
    model = CostModel(drafter, H200)
    assert model.round(1, 3) == pytest.approx(3 * 0.002 + H200(1, 4))


# --- scan ------------------------------------------------------------------------------------


def test_scan_finds_the_draft_length_of_the_closed_form() -> None:
    result = scan(0.8, CostModel(0.05), draft_lengths=range(1, 15), rounds=200_000)
    assert result.draft_lengths == tuple(range(15))  # 0 is added
    assert result.best(1).draft_length in (8, 9)  # 3.092 and 3.078: next to each other
    exact = [theory.speedup(0.8, k, 0.05) for k in range(15)]
    assert np.allclose([run.speedup.mean for run in result.by_batch[1]], exact, atol=0.05)


def test_a_tie_goes_to_the_shorter_draft() -> None:
    even = CostModel(draft_cost=1.0)  # certain drafts at the price of plain steps gain nothing
    assert scan(1.0, even, draft_lengths=range(4), rounds=10).best(1).draft_length == 0


def test_scan_drafts_less_as_the_batch_grows() -> None:
    result = scan(0.8, CostModel(0.05, H200), draft_lengths=range(9), batches=(256, 1, 32))
    assert result.batches == (1, 32, 256)
    lengths = [result.best(batch).draft_length for batch in result.batches]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_report_says_when_to_stop_speculating() -> None:
    never = scan(0.2, CostModel(0.5), draft_lengths=[1, 2], rounds=100)
    assert "Do not speculate at batch 1" in render(never, in_seconds=False)
    busy = Roofline(weight_bytes=16e9, bandwidth=4e12, compute=5e14)
    often = scan(0.5, CostModel(0.1, busy), draft_lengths=[1, 2, 3], batches=[1, 64, 512, 1024])
    assert "From batch 512 on, do not speculate." in render(often, in_seconds=True)
    assert as_dict(often, in_seconds=True)["batches"][2]["best_draft_length"] == 0


def test_curve_marks_its_peak_and_keeps_its_width() -> None:
    lines = draw_curve([0, 1, 2, 3], [1.0, 1.5, 2.0, 0.5], baseline=1.0, mark=2, width=31)
    assert "◆" in lines[0].plot
    assert lines[0].label.strip().startswith("2.00")
    assert all(len(line.plot) == 31 for line in lines[:-1])
    assert lines[-1].plot.split() == ["0", "1", "2", "3"]


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate(1.1, draft_length=3, draft_cost=0.1), "[0, 1]"),
        (lambda: simulate(0.8, draft_length=-1, draft_cost=0.1), "draft_length"),
        (lambda: simulate(0.8, draft_length=3, draft_cost=-1.0), "draft_cost"),
        (lambda: simulate(0.8, draft_length=3, draft_cost=0.1, rounds=0), "rounds"),
        (lambda: simulate(0.8, draft_length=3, draft_cost=0.1, batch=0), "batch"),
        (lambda: simulate(0.8, draft_length=3, draft_cost=0.1, seed=-1), "seed"),
        (lambda: simulate(0.8, draft_length=3, draft_cost=0.1, spread=0.5), "below 0.4"),
        (lambda: simulate([0.8], draft_length=1, draft_cost=0.1, spread=0.1), "spread at 0"),
        (lambda: simulate([0.8], draft_length=2, draft_cost=0.1), "at most 1"),
        (lambda: simulate(0.8, draft_length=2, draft_cost=0.1, target_cost=[1, 2]), "3 tokens"),
        (lambda: simulate(0.8, draft_length=2, draft_cost=0.1, overhead=-1), "overhead"),
        (lambda: replay([], recorded_length=4, draft_cost=0.1), "list of counts"),
        (lambda: replay([0.5], recorded_length=4, draft_cost=0.1), "list of counts"),
        (lambda: replay([5], recorded_length=4, draft_cost=0.1), "without the extra token"),
        (lambda: replay([1], recorded_length=4, draft_length=5, draft_cost=0.1), "at most 4"),
        (lambda: MeasuredCosts({}), "empty"),
        (lambda: MeasuredCosts({(1, 1): 0.0}), "above zero"),
        (lambda: MeasuredCosts({(1, 1): 1.0, (1, 4): 2.0})(1, 5), "1 to 4"),
        (lambda: MeasuredCosts({(1, 1): 1.0, (1, 4): 2.0})(2, 1), "batch = 2"),
        (lambda: Roofline(weight_bytes=0, bandwidth=1e12, compute=1e15), "weight_bytes"),
        (lambda: scan(0.8, CostModel(0.1), draft_lengths=[1], batches=[]), "no batch size"),
    ],
)
def test_nonsense_is_refused_with_a_cure(call, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
