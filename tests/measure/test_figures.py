"""Every figure against a count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import answer, cell, run

from forerun.measure.figures import figures, groups


def test_counts_are_added_before_dividing() -> None:
    long, short = answer("a", (4, 4, 4, 4)), answer("b", (0, 0))
    (found,) = figures([run(cell(), long), run(cell(), short)])
    assert found.acceptance_rate.mean == pytest.approx(16 / 24)
    assert found.tokens_per_round.mean == pytest.approx(22 / 6)
    assert found.accepted_length_shares == pytest.approx([2 / 6, 0, 0, 0, 4 / 6])
    assert found.num_prompts == 2
    assert found.speedup is None


def test_acceptance_by_position_is_conditional_on_being_reached() -> None:
    (found,) = figures([run(cell(), answer("a", (2, 0, 4)))])
    assert found.acceptance_by_position == pytest.approx([2 / 3, 1.0, 0.5, 1.0])


def test_speed_leaves_out_the_round_that_reads_the_prompt() -> None:
    """3 tokens in 1 second, then 6 in 2: the prompt's round would have hidden it."""
    (found,) = figures([run(cell(), answer("a", (2, 0, 4)))])
    assert found.seconds_per_token.mean == pytest.approx(2 / 6)
    assert found.tokens_per_second.mean == pytest.approx(3.0)
    assert found.tokens_per_second_with_prompt == pytest.approx(9 / 3)


def test_speed_with_the_prompt_is_not_known_where_one_was_not_read() -> None:
    read, recalled = run(cell(), answer("a")), run(cell(), answer("b", group="chat"))
    runs = [read, replace(recalled, read_prompts=False)]
    (found,) = figures(runs)
    assert found.tokens_per_second_with_prompt is None
    assert found.tokens_per_second.mean == pytest.approx(3.0)
    assert figures(runs, group="qa")[0].tokens_per_second_with_prompt == pytest.approx(9 / 3)


def test_repeats_are_merged_by_their_median_and_prompts_count_alike() -> None:
    plain = [
        run(cell(None, 0), answer("a", (0,) * 3, seconds=1 + 2 * s), repeat=i)
        for i, s in enumerate((0.1, 0.1, 5.0))  # 0.1 seconds per token, and a slow minute
    ]
    plain.append(run(cell(None, 0), answer("b", (0,) * 3, seconds=1 + 2 * 0.3)))
    fast = [
        run(cell(), answer("a", (0,) * 3, seconds=1 + 2 * 0.05)),
        run(cell(), answer("b", (0,) * 3, seconds=1 + 2 * 0.05)),
    ]
    found = {each.cell: each for each in figures(plain + fast)}
    assert found[cell()].speedup is not None
    assert found[cell()].speedup.mean == pytest.approx((0.1 + 0.3) / (0.05 + 0.05))
    assert found[cell(None, 0)].speedup is not None
    assert found[cell(None, 0)].speedup.mean == pytest.approx(1.0)


def test_a_batch_is_timed_until_its_last_answer() -> None:
    """Requests share the clock: the throughput is of all tokens over the longest time."""
    both = run(
        cell(batch=2), answer("a", (0,) * 5, seconds=5.0), answer("b", (4,) * 5, seconds=3.0)
    )
    (found,) = figures([both])
    assert found.tokens_per_second.mean == pytest.approx((4 + 20) / 4.0)
    assert found.seconds_per_token.mean == pytest.approx((4 / 4 + 2 / 20) / 2)


def test_a_group_is_measured_alone() -> None:
    runs = [run(cell(), answer("a", (4, 4))), run(cell(), answer("b", (0, 0), group="chat"))]
    assert groups(runs) == ["qa", "chat"]
    (found,) = figures(runs, group="chat")
    assert found.tokens_per_round.mean == pytest.approx(1.0)


def test_the_interval_holds_the_figure_and_widens_with_the_spread() -> None:
    even = figures([run(cell(), answer(str(i), (2, 2))) for i in range(8)])[0]
    mixed = figures([run(cell(), answer(str(i), (4 * (i % 2),) * 2)) for i in range(8)])[0]
    assert even.tokens_per_round.low == even.tokens_per_round.high == even.tokens_per_round.mean
    found = mixed.tokens_per_round
    assert found.low < found.mean < found.high
