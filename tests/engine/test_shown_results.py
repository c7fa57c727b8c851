"""What `print` shows of results: a line or two, however long they are."""

from __future__ import annotations

import forerun as fr
from forerun.models.table import TableModel

NGRAM = fr.drafters.NGram()
SAMPLING = fr.Sampling(seed=0)


def test_a_generation_is_shown_in_two_lines() -> None:
    target = TableModel.random(5, 1, seed=0)
    short, long = (
        fr.generate(
            target, [1, 2], max_new_tokens=length, drafter=fr.drafters.NGram(), sampling=SAMPLING
        )
        for length in (3, 200)
    )
    assert repr(short).startswith(f"Generation({short.tokens}, 3 tokens, length,\n  Stats(3 tokens")
    assert repr(long).startswith(f"Generation({long.tokens[:60]} ..., 200 tokens, length,\n")
    assert len(repr(long)) < 400
    stats = long.stats
    assert repr(stats).startswith(
        f"Stats(200 tokens in {stats.rounds} rounds, {stats.accepted} of {stats.drafted} drafted"
    )


def test_a_text_is_shown_by_its_beginning() -> None:
    answer = fr.Generation([1], [2] * 9, "word " * 99, "stop", 0, fr.Stats(), [])
    assert repr(answer).startswith(f"Generation({('word ' * 12)!r} ..., 9 tokens, stop,\n")
