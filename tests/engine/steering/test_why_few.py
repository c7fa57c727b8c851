"""Why few tokens were drafted: told in one line, from what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drafting import Saying

import forerun as fr
from clocks import StillClock
from forerun.base import clock
from forerun.cli.demo import _trade
from forerun.cli.generate import summary
from forerun.drafters import Guess
from forerun.engine.results import Stats
from forerun.engine.steering.why_few import Price, why_few

DEAR = Price(3, 2.5, 0.6)


def told(rounds: int, drafted: int, asked: int) -> Stats:
    """An answer of one token a round, with one guess in each of the first rounds."""
    stats = Stats(num_asked=asked)
    for number in range(rounds):
        stats.count_round(int(number < drafted), int(number < drafted), 0, number < drafted, 1)
    return stats


@pytest.mark.parametrize(
    ("asked", "price", "said"),
    [
        (5, None, "still being measured"),
        (5, DEAR, "3 guesses makes a pass 2.5 times as long here, and guesses were accepted too"),
        (5, DEAR, "rounds with drafts ran at 0.60x the speed of plain ones"),
        (5, DEAR, "asked in 5 of 40 rounds"),
        (19, DEAR, "accepted too seldom to pay"),
        (5, Price(1, 1.1, None), "scoring 1 guess makes a pass 1.1 times"),
        (39, DEAR, "asked in 39 of 40 rounds and had guesses worth scoring in 5"),
    ],
)
def test_the_reason_says_what_was_measured(asked: int, price: Price | None, said: str) -> None:
    assert said in str(why_few(told(40, 5, asked), price))


def test_nothing_is_explained_where_enough_was_drafted_or_next_to_nothing_generated() -> None:
    assert why_few(told(40, 40, 40), DEAR) is None
    assert why_few(told(3, 0, 0), DEAR) is None
    assert why_few(told(4, 0, 0), DEAR) is not None


def test_an_engine_tells_why_it_drafted_little(still_clock: StillClock) -> None:
    """Scoring takes a second a token, and the guesses are wrong: drafting is switched off."""

    def law(tokens: list[int]) -> Any:
        still_clock.pass_by(1.0)
        return np.eye(5)[(len(tokens) * len(tokens)) % 5]

    def guess(turn: Any) -> Guess:
        still_clock.pass_by(0.5)
        return Guess([3] * turn.budget)

    target, drafter = fr.wrap(law), Saying(guess)
    answer = fr.generate(target, [1], drafter=drafter, max_new_tokens=80)
    stats = answer.stats
    assert stats.why_few is not None
    assert "times as long here, and guesses were accepted too seldom" in stats.why_few
    assert 0 < stats.num_asked < stats.rounds / 2
    assert f"asked in {stats.num_asked} of {stats.rounds} rounds" in stats.why_few
    assert f"few drafts: {stats.why_few}\n" in summary(answer)
    assert stats.to_dict()["why_few"] == stats.why_few
    fixed = fr.generate(target, [1], drafter=drafter, draft_length=1, max_new_tokens=8)
    assert fixed.stats.why_few is None


def test_the_demo_tells_what_a_round_costs_and_brings() -> None:
    plain, ahead = Stats(), Stats()
    for number, (stats, emitted, seconds) in enumerate(
        [(plain, 1, 9.0), (ahead, 1, 9.0), *[(plain, 1, 1.0), (ahead, 3, 2.0)] * 3]
    ):
        stats.count_round(2, 2, emitted - 1, False, emitted)
        stats.count_seconds(0.0, seconds, 0.0, 0.0)
        assert number > 1 or _trade(plain, ahead) is None
    assert _trade(plain, ahead) == (
        "Without the first round, which reads the prompt, a speculative round took as long as 2.0 "
        "plain\nones and made 3.00 tokens."
    )


def test_compiling_is_told_apart_from_the_stages_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stats = told(10, 0, 0)
    stats.count_seconds(0.25, 0.5, 0.125, 0.125)
    answer = fr.Generation([], [1] * 10, "", "length", 0, stats, [])
    assert "compiling" not in summary(answer)
    stats.compiling = 46.83
    assert "10 tokens in 10 rounds, 1.00 per round; 1.00 s, 10.0 tokens/s" in summary(answer)
    assert summary(answer).endswith("\ncompiling: 46.8 s more, once on this machine")
    assert stats.to_dict()["compiling"] == 46.83
    monkeypatch.setattr(clock, "is_code_kept", False)
    assert "at every start: Numba may write nowhere; set NUMBA_CACHE_DIR" in summary(answer)
