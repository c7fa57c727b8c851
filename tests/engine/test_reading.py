"""Several prompts at once: rounds stay as short as with one, and no prompt waits for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tiny_models import Architecture

import forerun as fr
from clocks import StillClock
from forerun import rules
from forerun.drafters import EarlyExit, NGram, Suffix
from forerun.engine import pacing
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.pacing import ALONE_SECONDS
from forerun.engine.request import Request
from forerun.engine.schedule import OVERTAKEN
from forerun.generation.intake import make_request

MODEL = Architecture("llama", "crop", {"max_position_embeddings": 1024}).build()
SLOWER = 1.45  # times a usual round, in these tests
PROMPTS = np.random.default_rng(0).integers(60, size=(8, 400)).tolist()


class Slow:
    """An engine whose target takes 1 ms a round and 0.1 ms a token by the clock of the test."""

    def __init__(self, clock: StillClock, num_rows: int, slowdown: float = SLOWER) -> None:
        model: Any = fr.wrap(MODEL)
        score = model.score
        self.seconds: list[float] = []  # of each round
        self.fed: list[dict[int, int]] = []  # tokens by row

        def timed(state: Any, rows: Any, tokens: Any, *more: Any) -> Any:
            self.seconds.append(1e-3 + 1e-4 * sum(map(len, tokens)))
            self.fed.append(dict(zip(rows, map(len, tokens), strict=True)))
            clock.seconds += self.seconds[-1]
            return score(state, rows, tokens, *more)

        model.score = timed
        self.target = model
        self.engine = Engine(
            model, drafter=None, draft_length=0, rule=rules.get("match"), num_rows=num_rows,
            slowdown=slowdown,
        )  # fmt: skip

    def ask(self, prompt: Sequence[int], count: int = 4) -> Request:
        request = make_request(
            self.target, list(prompt), AnswerOptions(fr.Sampling(seed=1), max_new_tokens=count)
        )
        self.engine.submit(request)
        return request

    def answering(self, num_rounds: int = 20) -> Request:
        """A request that is being answered, and whose rounds have been timed."""
        request = self.ask([1, 2], count=1000)
        for _ in range(num_rounds):
            self.engine.step()
        return request


def test_several_long_prompts_make_rounds_no_longer_than_one(still_clock: StillClock) -> None:
    longest = []
    for num_long in (1, 3):
        slow = Slow(still_clock, num_rows=4)
        slow.answering()
        usual, before = slow.seconds[-1], len(slow.seconds)
        requests = [slow.ask(prompt[:60]) for prompt in PROMPTS[:num_long]]
        while any(request.num_output == 0 for request in requests):
            slow.engine.step()
        longest.append(max(slow.seconds[before:]) / usual)
    # answers that begin in between add a token each to the round
    assert longest[0] <= 1.05 * SLOWER
    assert longest[1] <= 1.05 * SLOWER + 2e-4 / usual


def test_a_short_prompt_does_not_wait_for_long_ones(still_clock: StillClock) -> None:
    slow = Slow(still_clock, num_rows=8)
    slow.answering()
    long = [slow.ask(prompt) for prompt in PROMPTS[:6]]
    for _ in range(10):
        slow.engine.step()
    before, short = len(slow.seconds), slow.ask(PROMPTS[7][:12])
    while short.num_output == 0:
        slow.engine.step()
    assert len(slow.seconds) - before <= 12
    assert not any(request.num_output for request in long)


def test_long_prompts_are_read_while_short_ones_keep_coming(still_clock: StillClock) -> None:
    slow = Slow(still_clock, num_rows=4)
    slow.answering()
    long = slow.ask(PROMPTS[0][:100])
    generator, num_short = np.random.default_rng(1), 0
    while long.num_output == 0:
        while slow.engine.num_queued + len(slow.engine.running) < 4:
            slow.ask(generator.integers(60, size=20).tolist(), count=1)
            num_short += 1
        slow.engine.step()
        assert len(slow.seconds) < 400
    assert num_short > 5


def test_a_long_prompt_is_overtaken_by_three_times_its_length_at_most(
    still_clock: StillClock,
) -> None:
    slow = Slow(still_clock, num_rows=6)
    slow.answering()
    long, generator = slow.ask(PROMPTS[0][:100]), np.random.default_rng(1)
    while long.num_output == 0:
        while slow.engine.num_queued + len(slow.engine.running) < 6:
            slow.ask(generator.integers(60, size=20).tolist(), count=1)
        slow.engine.step()
    row = slow.engine.running.index(long)
    read = sum(size for fed in slow.fed[20:] for size in fed.values() if size > 1)
    assert any(row in fed for fed in slow.fed)
    assert 2 * 100 < read - 100 <= OVERTAKEN * 100 + 20 + 10  # a prompt and a part that had begun


@pytest.mark.parametrize("slowdown", [1.0, 2.0, 6.0, float("inf")])
def test_an_operator_says_how_much_longer_rounds_may_take(
    still_clock: StillClock, slowdown: float
) -> None:
    slow = Slow(still_clock, num_rows=4, slowdown=slowdown)
    early = slow.answering()
    usual, before = slow.seconds[-1], len(slow.seconds)
    length = 60 if slowdown == 1.0 else 400  # one is read a token a round
    requests = [slow.ask(prompt[:length]) for prompt in PROMPTS[:2]]
    while any(request.num_output == 0 for request in requests):
        slow.engine.step()
    longest = max(slow.seconds[before:]) / usual
    if slowdown == 1.0:
        assert longest <= 1.3  # a token a round
    elif slowdown < 10:
        assert 0.8 * slowdown <= longest <= 1.1 * slowdown + 0.2
    else:
        assert longest > 15  # parts grow by half from one to the next
    while slow.engine.num_queued or len(slow.engine.running) > 1:
        slow.engine.step()
    for request in (early, *requests):
        plain = fr.generate(
            slow.target, request.prompt, drafter=None, sampling=fr.Sampling(seed=1),
            max_new_tokens=request.num_output,
        )  # fmt: skip
        assert request.output == plain.tokens


def test_where_nobody_is_answered_a_part_takes_a_quarter_of_a_second(
    still_clock: StillClock,
) -> None:
    slow = Slow(still_clock, num_rows=2)
    score = slow.target.score

    def slower(state: Any, rows: Any, tokens: Any, *more: Any) -> Any:
        still_clock.seconds += 3e-3 * sum(map(len, tokens))  # 3.1 ms a token
        slow.seconds.append(3.1e-3 * sum(map(len, tokens)))
        return score(state, rows, tokens, *more)

    slow.target.score = slower
    request = slow.ask(PROMPTS[0])
    while request.num_output == 0:
        slow.engine.step()
    assert 0.7 * ALONE_SECONDS < max(slow.seconds) < 1.1 * ALONE_SECONDS


@cache
def greedy(prompt: tuple[int, ...]) -> list[int]:
    """What plain decoding says."""
    sampling = fr.Sampling(temperature=0.0)
    return fr.generate(
        fr.wrap(MODEL), list(prompt), drafter=None, sampling=sampling, max_new_tokens=30
    ).tokens


@pytest.mark.parametrize("tree", [None, 6], ids=["chain", "tree"])
@pytest.mark.parametrize(
    "drafter", [Suffix, NGram, lambda: EarlyExit(1)], ids=["suffix", "ngram", "exit"]
)
@pytest.mark.parametrize("is_drafted_for", [True, False], ids=["drafted", "not drafted"])
def test_an_engine_that_has_drafted_reads_a_prompt_of_several_parts(
    drafter: Callable[[], Any], tree: int | None, is_drafted_for: bool
) -> None:
    target = fr.wrap(MODEL)
    engine = Engine(
        target, drafter=drafter(), draft_length="auto", tree=tree, rule=rules.get("match"),
        num_rows=2, slowdown=SLOWER,
    )  # fmt: skip
    sampling = fr.Sampling(temperature=0.0)
    for prompt, is_asked in (
        ([5, 6, 7] * 20, True),  # which the drafters guess, so that guesses are judged
        (PROMPTS[0] + PROMPTS[1][:300], is_drafted_for),
    ):
        request = make_request(target, prompt, AnswerOptions(sampling, max_new_tokens=30))
        request.draft_length = None if is_asked else 0
        engine.submit(request)
        while engine.busy:
            engine.step()
        assert request.output == greedy(tuple(prompt))


def test_a_newcomer_waits_for_a_short_pass_also_where_nobody_is_answered(
    still_clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "MOST_ALONE_TOKENS", 50)
    slow = Slow(still_clock, num_rows=3)
    long = [slow.ask(prompt[:300]) for prompt in PROMPTS[:2]]
    slow.engine.step()
    short = slow.ask(PROMPTS[2][:20])
    slow.engine.step()
    slow.engine.step()
    assert max(sum(fed.values()) for fed in slow.fed) == 50
    assert short.num_output >= 1
    while slow.engine.busy:
        slow.engine.step()
    plain = [
        fr.generate(
            slow.target, one.prompt, drafter=None, sampling=fr.Sampling(seed=1), max_new_tokens=4
        )
        for one in long
    ]
    assert [one.output for one in long] == [out.tokens for out in plain]


def test_a_usual_round_is_asked_for_once_where_times_come_a_round_later() -> None:
    """As from executors whose rounds fly one ahead."""
    made = pacing.Pacing(4.0)
    made.learn(0.01, 8, 0)
    for _ in range(pacing.PROBE):
        made.learn(0.02, 8, 100)
    asked = [made.num_tokens(8), made.num_tokens(8)]
    made.learn(0.02, 8, 100)  # of the round before
    made.learn(0.01, 8, 0)
    assert asked[0] == 0 < asked[1]
    assert made.num_tokens(8) > 0
