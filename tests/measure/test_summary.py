"""The summary of a sweep whose every number can be worked out by hand."""

from __future__ import annotations

import pytest
from small import answer, cell, run

from forerun.measure.records import Cell, Interval, Prediction, Records, Run
from forerun.measure.summary import Miss, in_words, summarise

PLAIN, AUTO, SUFFIX = cell(None, 0), cell(draft_length="auto"), cell("suffix", "auto")


def timed(of: Cell, qa: float, chat: float) -> list[Run]:
    """A prompt of each group, with so many seconds for each of two tokens after the first."""
    first = answer("a", (0, 0, 0), seconds=1 + 2 * qa)
    return [run(of, first), run(of, answer("b", (0, 0, 0), seconds=1 + 2 * chat, group="chat"))]


def predicted(of: Cell, speedup: float) -> Prediction:
    return Prediction(of, Interval(1.0, 1.0, 1.0), Interval(speedup, speedup, speedup))


def records() -> Records:
    """Plain decoding at 2.5 tokens per second; K = 4 twice as fast; K = 2 at 0.8 of it."""
    cut = answer("a", (0, 0, 2), new_tokens=4, seconds=1 + 3 * 0.5)  # its last token was not kept
    chat = answer("b", (0, 0, 0), seconds=1 + 2 * 0.5, group="chat")
    return Records(
        runs=[
            *timed(PLAIN, 0.4, 0.4),
            *timed(cell(), 0.2, 0.2),
            run(cell(draft_length=2), cut),
            run(cell(draft_length=2), chat),
            *timed(AUTO, 0.16, 0.5),
            *timed(SUFFIX, 0.8, 0.8),
            *timed(cell(peer="transformers"), 0.1, 0.1),
            *timed(cell(draft_length="auto", tree=8), 0.1, 0.1),
        ],
        predictions=[
            predicted(cell(), 9.0),  # another probe came later
            predicted(cell(), 2.29),
            predicted(cell(draft_length=2), 1.0),
            predicted(cell(draft_length=8), 1.0),  # was not run
        ],
    )


def test_predictions_within_15_percent_of_the_measured_speedup_are_counted() -> None:
    found = summarise(records())
    assert (found.num_predicted, found.num_close) == (2, 1)
    assert found.misses == [Miss(cell(draft_length=2), 1.0, pytest.approx(0.8))]
    either = [predicted(cell(), 2.29), predicted(cell(), 2.31), predicted(cell(), 1.69)]
    close = [summarise(Records(runs=records().runs, predictions=[each])) for each in either]
    assert [each.num_close for each in close] == [1, 0, 0]


def test_auto_is_held_against_the_best_fixed_length_and_against_none() -> None:
    """4 tokens in 0.32 + 1 seconds against K = 4 with 5 per second; suffix has plain alone."""
    ngram, suffix = summarise(records()).autos
    assert (ngram.cell, ngram.best) == (AUTO, cell())
    assert ngram.against_best == pytest.approx(4 / 1.32 / 5)
    assert ngram.by_group == pytest.approx({"qa": 2.5, "chat": 0.8})
    assert ngram.lowest == "chat"
    assert (suffix.cell, suffix.best) == (SUFFIX, PLAIN)
    assert suffix.against_best == pytest.approx(0.5)
    assert suffix.by_group == pytest.approx({"qa": 0.5, "chat": 0.5})


def test_the_worst_replay_is_named() -> None:
    """K = 2 kept 7 tokens of the 8 that its 6 rounds had to give."""
    found = summarise(records())
    assert [each.cell for each in found.replays] == [cell(), cell(draft_length=2)]
    assert found.worst_replay is not None
    assert found.worst_replay.cell == cell(draft_length=2)
    assert found.worst_replay.error == pytest.approx(1 / 7)


def test_in_words() -> None:
    assert in_words(summarise(records())) == [
        "predictions: 1 of 2 cells within 15% of the measured speed-up",
        "  missed: ngram, K = 2, batch 1, greedy: predicted 1.00x, measured 0.80x",
        "auto: ngram, auto K, batch 1, greedy: 0.61x the best fixed one (K = 4); "
        "over plain decoding 0.80x (chat, the lowest of 2 task groups)",
        "auto: suffix, auto K, batch 1, greedy: 0.50x the best fixed one (K = 0); "
        "over plain decoding 0.50x (qa, the lowest of 2 task groups)",
        "replay: tokens per round within 14.3% in 2 cells; worst: ngram, K = 2, batch 1, greedy",
    ]


def test_an_unfinished_sweep_says_what_it_can() -> None:
    alone = summarise(Records(runs=timed(AUTO, 0.2, 0.2)))
    assert (alone.num_predicted, alone.misses, alone.autos, alone.replays) == (0, [], [], [])
    assert in_words(alone) == in_words(summarise(Records())) == []
    no_plain = summarise(Records(runs=[*timed(AUTO, 0.2, 0.2), *timed(cell(), 0.4, 0.4)]))
    assert no_plain.autos[0].against_best == pytest.approx(2.0)
    assert no_plain.autos[0].lowest is None
    assert in_words(no_plain)[0].endswith("2.00x the best fixed one (K = 4)")
