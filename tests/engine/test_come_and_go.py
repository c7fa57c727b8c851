"""Requests enter, are aborted, go on elsewhere and leave; nobody else's text changes."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any
from weakref import ref

import numpy as np
import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from clocks import StillClock
from forerun import rules
from forerun.drafters import EarlyExit, Mixed, Model, NGram, Quantized, Suffix
from forerun.engine import schedule
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.pacing import FIRST, PROBE, UNMEASURED, Pacing
from forerun.engine.request import Request
from forerun.generation.intake import make_request
from forerun.gpu_rounds.choosing import executor_of
from forerun.models import TableModel
from forerun.models.base import shared_prefix

MODEL = Architecture("llama", "crop", {"max_position_embeddings": 512}).build()
TARGET = fr.wrap(MODEL)
TABLE = TableModel.random(vocab_size=7, order=2, seed=0)
SLOWER = 1.45  # times a usual round, in these tests
DRAFTERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "ngram": NGram,
    "suffix": Suffix,
    "model": lambda: Model(noisy_copy(MODEL, 0.1)),
    "early exit": lambda: EarlyExit(1),
    "quantized": Quantized,
    "mixed": lambda: Mixed(Suffix(), NGram(), Model(noisy_copy(MODEL, 0.1))),
}
MIXED = pytest.param("mixed", marks=pytest.mark.slow)
"""Three of the others; by default it is cut anywhere and goes on."""


class Counting:
    """A model that counts the tokens it is fed, otherwise as it was."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.fed: list[int] = []
        self.name, self.vocab_size = inner.name, inner.vocab_size
        self.max_context: int | None = inner.max_context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def score(self, state: Any, rows: Any, tokens: Any, *more: Any) -> Any:
        self.fed.append(sum(map(len, tokens)))
        return self.inner.score(state, rows, tokens, *more)

    def start(self, *args: Any) -> Any:
        return self.inner.start(*args)

    def commit(self, *args: Any) -> None:
        self.inner.commit(*args)

    def release(self, *args: Any) -> None:
        self.inner.release(*args)

    def copy_prefix(self, *args: Any) -> int:
        return int(self.inner.copy_prefix(*args))

    def truncate(self, *args: Any) -> int:
        return int(self.inner.truncate(*args))


def engine_of(target: Any, drafter: Any = None, num_rows: int = 3, **options: Any) -> Engine:
    options = {"draft_length": 4, "rule": rules.get("match")} | options
    return Engine(target, executor_of=executor_of, drafter=drafter, num_rows=num_rows, **options)


def request_of(target: Any, prompt: Sequence[int], seed: int = 0, **options: Any) -> Request:
    sampling = fr.Sampling(temperature=0.8, seed=seed)
    return make_request(
        target, list(prompt), AnswerOptions(sampling, **{"max_new_tokens": 12, **options})
    )


def plain(target: Any, prompt: Sequence[int], seed: int = 0, count: int = 12) -> list[int]:
    return _plain(target, tuple(prompt), seed, count)


@cache
def _plain(target: Any, prompt: tuple[int, ...], seed: int, count: int) -> list[int]:
    sampling = fr.Sampling(temperature=0.8, seed=seed)
    out: fr.Generation = fr.generate(
        target, list(prompt), drafter=None, sampling=sampling, max_new_tokens=count, ignore_eos=True
    )
    return out.tokens


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


# --- abort -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "model", "early exit", MIXED])
def test_an_aborted_request_frees_its_row_for_the_next_round(name: str) -> None:
    engine = engine_of(TARGET, DRAFTERS[name](), num_rows=2)
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8]]
    first, second, third = (request_of(TARGET, one, 5, max_new_tokens=16) for one in prompts)
    for request in (first, second, third):
        engine.submit(request)
    engine.step()
    assert engine.running == [first, second]
    assert engine.abort(first.number) is first
    engine.step()
    assert {request.number for request in engine.running} == {second.number, third.number}
    finish(engine)
    assert first.generation().finish_reason == "aborted"
    assert first.output == plain(TARGET, prompts[0], 5, 16)[: first.num_output]
    assert second.output == plain(TARGET, prompts[1], 5, 16)
    assert third.output == plain(TARGET, prompts[2], 5, 16)
    assert not third.stats.notes


def test_a_waiting_request_can_be_aborted() -> None:
    engine = engine_of(TABLE, num_rows=1)
    first, second = (request_of(TABLE, [1], seed) for seed in (1, 2))
    engine.submit(first)
    engine.submit(second)
    engine.step()
    engine.abort(second.number)
    finish(engine)
    assert (second.finish_reason, second.output) == ("aborted", [])
    assert first.output == plain(TABLE, [1], 1)


def test_aborting_what_is_not_there() -> None:
    engine = engine_of(TABLE)
    request = request_of(TABLE, [1])
    engine.submit(request)
    engine.step()
    engine.abort(request.number)
    with pytest.raises(fr.InputError, match=r"may have ended.*already"):
        engine.abort(request.number)
    with pytest.raises(fr.InputError, match="No request of that number"):
        engine.abort(99)


@pytest.mark.parametrize("num_requests", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_enter_and_are_aborted(num_requests: int) -> None:
    """Any order, any moment: texts stay, and rows, queue and drafter hold nothing in the end."""
    generator = np.random.default_rng(0)
    drafter = Suffix()
    engine = engine_of(TABLE, drafter, num_rows=4)
    submitted: list[Request] = []
    for _ in range(num_requests):
        prompt = generator.integers(7, size=int(generator.integers(1, 40))).tolist()
        request = request_of(TABLE, prompt, int(generator.integers(2**40)), max_new_tokens=5)
        engine.submit(request)
        submitted.append(request)
        for _ in range(int(generator.integers(3))):
            engine.step()
        there = [*engine.running, *engine._schedule.waiting]
        if there and generator.random() < 0.7:
            engine.abort(there[int(generator.integers(len(there)))].number)
    finish(engine)
    assert all(request.finish_reason in ("length", "aborted") for request in submitted)
    num_whole = sum(request.finish_reason == "length" for request in submitted)
    assert num_whole > num_requests / 10
    assert engine._seats.occupants == [None] * 4
    assert sorted(engine._seats._free) == [0, 1, 2, 3]
    for request in submitted[::10]:
        expected = plain(TABLE, request.prompt, request.seed, 5)
        assert request.output == expected[: request.num_output]


# --- resume ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("num_seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_request_cut_anywhere_goes_on_with_the_same_text(name: str, num_seeds: int) -> None:
    """Five random cuts for each of eight drafters, at temperature 0.8; twenty-five in the slow
    run."""
    generator = np.random.default_rng(list(name.encode()))
    drafter = DRAFTERS[name]()
    for seed in range(num_seeds):
        prompt = generator.integers(60, size=5).tolist()
        whole = plain(TARGET, prompt, seed, 16)
        for cut in generator.choice(16, size=5, replace=False).tolist():
            out = fr.generate(
                TARGET, prompt, drafter=drafter, resume=whole[:cut], max_new_tokens=16,
                sampling=fr.Sampling(temperature=0.8, seed=seed), ignore_eos=True,
            )  # fmt: skip
            assert out.tokens == whole
            assert out.fates[:cut] == [fr.Fate.GIVEN] * cut
            assert fr.Fate.GIVEN not in out.fates[cut:]


def test_resuming_counts_penalties_and_lengths_from_the_start() -> None:
    sampling = fr.Sampling(seed=3, presence_penalty=0.9, frequency_penalty=0.5, min_tokens=20)
    how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 25, "stop_tokens": [2]}
    whole = fr.generate(TABLE, [1, 2], drafter=None, **how)
    for cut in (0, 1, 7, 19):
        out = fr.generate(TABLE, [1, 2], drafter=None, resume=whole.tokens[:cut], **how)
        assert (out.tokens, out.finish_reason) == (whole.tokens, whole.finish_reason)


def test_several_prompts_are_resumed_each_after_its_own() -> None:
    prompts = [[1], [2, 3]]
    whole = fr.generate(
        TABLE, prompts, drafter=None, sampling=fr.Sampling(seed=4), max_new_tokens=10
    )
    cuts = [whole[0].tokens[:4], []]
    outs = fr.generate(
        TABLE, prompts, drafter=None, sampling=fr.Sampling(seed=4), max_new_tokens=10, resume=cuts
    )
    assert [out.tokens for out in outs] == [out.tokens for out in whole]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([1], {"resume": [1] * 10, "max_new_tokens": 10}, "nothing left to generate"),
        ([1], {"resume": [1, 9]}, "outside the vocabulary"),
        ([1], {"resume": [3, 2, 3], "stop_tokens": [2]}, "already ended, at its token 1"),
        ([[1], [2]], {"resume": [[1]]}, "does not fit the prompts"),
        ([[1], [2]], {"resume": [1, 2]}, "does not fit the prompts"),
        ([1], {"resume": [1], "sampling": fr.Sampling(n=2)}, "cannot share an output"),
    ],
)
def test_outputs_that_cannot_be_resumed(prompt: Any, options: Any, message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        fr.generate(TABLE, prompt, drafter=None, **options)


# --- prefixes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "model", "early exit", MIXED])
def test_samples_of_one_prompt_read_it_once(name: str) -> None:
    target = Counting(TARGET)
    prompt = np.random.default_rng(1).integers(60, size=200).tolist()
    how: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True}
    sampling = fr.Sampling(temperature=0.8, seed=2, n=4)
    outs = fr.generate(target, prompt, drafter=DRAFTERS[name](), sampling=sampling, **how)
    assert [len(out.tokens) for out in outs] == [6] * 4
    assert sum(target.fed) < 200 + 4 * 6 * 8
    alone = [
        fr.generate(
            TARGET,
            prompt,
            drafter=None,
            sampling=fr.Sampling(temperature=0.8, seed=out.seed),
            **how,
        )
        for out in outs
    ]
    assert [out.tokens for out in outs] == [out.tokens for out in alone]
    assert not any(out.stats.notes for out in outs)


@pytest.mark.parametrize("name", ["none", "model", "early exit", MIXED])
def test_the_next_turn_finds_the_last_one(name: str) -> None:
    target = Counting(TARGET)
    engine = engine_of(target, DRAFTERS[name](), num_rows=2)
    history = np.random.default_rng(2).integers(60, size=150).tolist()
    first = request_of(target, history, 3)
    engine.submit(first)
    engine.submit(request_of(target, [5, 6, 7], 4))  # somebody else, in between
    finish(engine)
    target.fed.clear()
    second = request_of(target, [*first.tokens, 9, 8, 7], 5)
    engine.submit(second)
    finish(engine)
    assert target.fed[0] <= 1 + 3 + 4 + 1  # the last token, the new ones, a draft
    assert second.output == plain(TARGET, second.prompt, 5)
    assert not second.stats.notes


def test_a_short_match_does_not_destroy_a_long_text() -> None:
    """A row that stores much more than it shares is copied from, not cut, where another is free."""
    engine = engine_of(TARGET, num_rows=3)
    history = np.random.default_rng(3).integers(60, size=120).tolist()
    long = request_of(TARGET, history)
    engine.submit(long)
    finish(engine)
    engine.submit(request_of(TARGET, [*history[:20], 1, 2, 3]))
    finish(engine)
    _, kept = engine._seats._best_source([*long.tokens, 1], "")
    assert kept >= len(history)


def test_a_row_is_taken_over_while_its_request_is_busy() -> None:
    engine = engine_of(TARGET, num_rows=2)
    history = np.random.default_rng(4).integers(60, size=80).tolist()
    first = request_of(TARGET, history, 1, max_new_tokens=40)
    engine.submit(first)
    engine.step()
    second = request_of(TARGET, [*history[:60], 3], 2)
    engine.submit(second)
    finish(engine)
    assert first.output == plain(TARGET, history, 1, 40)
    assert second.output == plain(TARGET, second.prompt, 2)


def test_shared_prefix() -> None:
    generator = np.random.default_rng(5)
    for _ in range(300):
        one, other = (generator.integers(2, size=int(generator.integers(9))) for _ in range(2))
        limit = int(generator.integers(10))
        pairs = zip(one[:limit], other[:limit], strict=False)
        expected = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        shortest = min(limit, len(one), len(other))
        found = shared_prefix(one.tolist(), other.tolist(), limit)
        assert found == (shortest if expected is None else expected)


# --- pacing ------------------------------------------------------------------------------------


def test_a_long_prompt_is_read_in_parts_beside_others(still_clock: StillClock) -> None:
    """The target takes 1 ms a round and 0.1 ms a token: parts come to fit what a round may take."""
    target = Counting(TARGET)
    inner, rounds = target.score, []

    def score(state: Any, rows: Any, tokens: Any, *more: Any) -> Any:
        seconds = 1e-3 + 1e-4 * sum(map(len, tokens))
        still_clock.seconds += seconds
        rounds.append(seconds)
        return inner(state, rows, tokens, *more)

    target.score = score  # type: ignore[method-assign]
    engine = engine_of(target, num_rows=3, slowdown=SLOWER)
    early = [request_of(target, [1, 2], seed, max_new_tokens=100) for seed in range(2)]
    for request in early:
        engine.submit(request)
    for _ in range(20):
        engine.step()
    usual = rounds[-1]
    long = request_of(target, np.random.default_rng(6).integers(60, size=200).tolist(), 7)
    engine.submit(long)
    before = len(rounds)
    while long.num_output == 0:
        num_early = [request.num_output for request in early]
        engine.step()
        assert [request.num_output for request in early] == [count + 1 for count in num_early]
    assert max(rounds[before:]) <= 1.05 * SLOWER * usual
    assert 20 < len(rounds) - before < 70  # 200 tokens in parts of about 7
    finish(engine)
    assert long.output == plain(TARGET, long.prompt, 7)
    for seed, request in enumerate(early):
        assert request.output == plain(TARGET, [1, 2], seed, 100)


@pytest.mark.parametrize("name", ["suffix", "model", "early exit", MIXED])
def test_drafters_follow_texts_that_are_read_in_parts(name: str) -> None:
    engine = engine_of(TARGET, DRAFTERS[name](), num_rows=2, slowdown=SLOWER)
    first = request_of(TARGET, [1, 2], 1, max_new_tokens=40)
    long = request_of(TARGET, np.random.default_rng(7).integers(60, size=60).tolist(), 2)
    engine.submit(first)
    engine.step()
    engine.submit(long)
    finish(engine)
    assert first.output == plain(TARGET, [1, 2], 1, 40)
    assert long.output == plain(TARGET, long.prompt, 2)
    assert not long.stats.notes + first.stats.notes


def test_a_model_that_stores_nothing_is_fed_whole_texts() -> None:
    engine = engine_of(TABLE, num_rows=2, slowdown=SLOWER)
    first, long = request_of(TABLE, [1], 1, max_new_tokens=30), request_of(TABLE, [3, 1] * 30, 2)
    engine.submit(first)
    engine.step()
    engine.submit(long)
    finish(engine)
    assert long.output == plain(TABLE, long.prompt, 2)


@pytest.mark.parametrize("drafter", [None, Suffix(), EarlyExit(1)], ids=["none", "suffix", "exit"])
def test_a_pass_has_a_limit_also_where_nobody_waits(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MOST_TOKENS", 16)
    target = Counting(TARGET)
    prompts = np.random.default_rng(8).integers(60, size=(2, 50)).tolist()
    outs = fr.generate(
        target, prompts, drafter=drafter, draft_length=2, max_new_tokens=9,
        sampling=fr.Sampling(temperature=0.8, seed=3), ignore_eos=True,
    )  # fmt: skip
    assert max(target.fed) <= 16 + 2 * 3
    assert [out.tokens for out in outs] == [plain(TARGET, one, 3, 9) for one in prompts]


def paced(pacing: Pacing, fixed: float, slope: float, rounds: int) -> list[int]:
    """Parts of a prompt, where a round takes 10 ms and a part adds `fixed + slope * tokens`."""
    parts = []
    for _ in range(rounds):
        pacing.learn(0.010, 4, 0)
        parts.append(pacing.num_tokens(4))
        pacing.learn(0.010 + fixed + slope * parts[-1], 4, parts[-1])
    return parts


def test_pacing_settles_on_what_fits() -> None:
    pacing = Pacing(SLOWER)
    assert pacing.num_tokens(4) == FIRST
    parts = paced(pacing, 0.0, 0.0005, 30)
    assert parts[-1] == pytest.approx((SLOWER - 1) * 0.010 / 0.0005, abs=1)
    assert max(parts) <= parts[-1] + 1
    pacing.learn(10.0, 4, 0)  # one interruption
    assert pacing.num_tokens(4) == pytest.approx(parts[-1], abs=1)
    left = ((SLOWER - 1) * 0.010 - 0.002) / 0.0005
    assert (
        FIRST <= paced(Pacing(SLOWER), 0.002, 0.0005, 40)[-1] <= left + 1
    )  # a fixed cost: rather less


def test_where_short_parts_cost_as_much_as_long_ones_they_are_long() -> None:
    """A model that reads each row in a pass of its own used to get one token a round for ever."""
    parts = paced(Pacing(SLOWER), 0.010, 0.0001, 40)
    assert median(parts[15:]) >= 64


def test_parts_shrink_as_the_context_grows() -> None:
    """A token costs 0.1 ms at the beginning and 0.9 ms after 4,000 tokens, 6% noise; an estimate
    from too many old parts takes this for a fixed cost, and lets a round take 20 times as long."""
    for seed in range(10):
        generator, pacing, context = random.Random(seed), Pacing(SLOWER), 0
        for _ in range(20):
            pacing.learn(0.010 * generator.uniform(0.97, 1.03), 4, 0)
        rounds, parts = [], []
        while context < 4000:
            parts.append(pacing.num_tokens(4))
            seconds = 0.010 + parts[-1] * (0.0001 + 2e-7 * context)
            rounds.append(seconds * generator.uniform(0.97, 1.03))
            context += parts[-1]
            pacing.learn(rounds[-1], 4, parts[-1])
        assert max(rounds) < 2 * 0.010
        assert max(parts) > 3 * parts[-2]
        usual_use = 1 + (SLOWER - 1) * 2 / 3
        assert sum(rounds) / len(rounds) > usual_use * 0.010  # little room is left unused


def test_rounds_without_a_part_tell_what_is_usual_by_now() -> None:
    """The answers alone come to take 20 ms instead of 10 while a prompt is read."""
    pacing, parts = Pacing(SLOWER), []
    for _ in range(10):
        pacing.learn(0.010, 4, 0)
    for _ in range(200):
        parts.append(pacing.num_tokens(4))
        pacing.learn(0.020 + 0.0005 * parts[-1], 4, parts[-1])
    assert max(parts[-PROBE:]) == pytest.approx((SLOWER - 1) * 0.020 / 0.0005, abs=1)
    assert parts[-(PROBE + 1) :].count(0) == 1


def test_when_rows_come_and_go_what_is_usual_is_measured_anew() -> None:
    """A row takes 5 ms of a round, and a prompt token 0.5 ms, whatever the number of rows."""
    pacing = Pacing(SLOWER)

    def parts_of(num_rows: int, rounds: int) -> list[int]:
        parts = []
        for _ in range(rounds):
            parts.append(pacing.num_tokens(num_rows))
            pacing.learn(0.005 * num_rows + 0.0005 * parts[-1], num_rows, parts[-1])
        return parts

    pacing.learn(0.010, 2, 0)
    parts_of(2, 40)
    for num_rows in (8, 32, 8, 2):
        parts = parts_of(num_rows, 20)
        if num_rows == 32:
            assert parts[0] == 0  # timed without, at once
        assert max(parts) == pytest.approx((SLOWER - 1) * 0.005 * num_rows / 0.0005, abs=1)


def test_pacing_without_a_usual_round_asks_for_one() -> None:
    pacing = Pacing(SLOWER)
    assert pacing.num_tokens(4) == FIRST
    pacing.learn(0.02, 4, FIRST)
    assert pacing.num_tokens(4) == 0
    for _ in range(3):  # in vain: it goes on, and does not stand still
        assert 0 < pacing.num_tokens(4) <= UNMEASURED
        pacing.learn(0.02, 4, 30)
        assert pacing.num_tokens(4) == 0


# --- order, deadlines, limits ------------------------------------------------------------------


def test_a_higher_priority_goes_first() -> None:
    engine = engine_of(TABLE, num_rows=1)
    requests = [request_of(TABLE, [1], seed, priority=priority) for seed, priority in
                enumerate([0, 1, 5, 1, 5])]  # fmt: skip
    for request in requests:
        engine.submit(request)
    order: list[int] = []
    while engine.busy:
        order += [request.seed for request, _ in engine.step() if request.finish_reason]
    assert order == [2, 4, 1, 3, 0]


def test_a_deadline_ends_a_request_where_it_is(still_clock: StillClock) -> None:
    engine = engine_of(TABLE, num_rows=1)
    first = request_of(TABLE, [1], 1, max_new_tokens=50, timeout=1.0)
    second = request_of(TABLE, [2], 2, timeout=0.5)
    third = request_of(TABLE, [3], 3)
    for request in (first, second, third):
        engine.submit(request)
    engine.step()
    still_clock.seconds += 0.6
    ended = [request for request, gained in engine.step() if gained == 0]
    assert ended == [second]
    still_clock.seconds += 0.6
    finish(engine)
    assert (first.finish_reason, second.finish_reason) == ("deadline", "deadline")
    assert first.output == plain(TABLE, [1], 1, 50)[:2]
    assert third.output == plain(TABLE, [3], 3)


def test_a_full_engine_says_so() -> None:
    """Two may wait beside the one for which a row is free."""
    engine = engine_of(TABLE, num_rows=1, max_waiting=2)
    for _ in range(3):
        engine.submit(request_of(TABLE, [1], max_new_tokens=1))
    with pytest.raises(fr.EngineFullError, match="more than the 2 that may wait"):
        engine.submit(request_of(TABLE, [1]))
    engine.step()
    engine.submit(request_of(TABLE, [1]))


def test_models_that_store_nothing_share_passes_all_the_same() -> None:
    """Four equal prompts of 40 tokens: nothing can be taken over, so nobody waits for it long."""
    engine = engine_of(TABLE, num_rows=4)
    requests = [request_of(TABLE, [3, 1] * 20, seed, max_new_tokens=10) for seed in range(4)]
    for request in requests:
        engine.submit(request)
    rounds = 0
    while engine.busy:
        engine.step()
        rounds += 1
    assert rounds <= 12
    assert [one.output for one in requests] == [plain(TABLE, [3, 1] * 20, s, 10) for s in range(4)]


def test_drafting_goes_on_while_prompts_are_read(still_clock: StillClock) -> None:
    """Rounds that cannot be timed neither switch drafting off nor count as time passed."""

    class Slow(Counting):
        def score(self, *arguments: Any) -> Any:
            still_clock.pass_by(1e-3)
            return super().score(*arguments)

    knowing = Slow(TARGET)
    engine = engine_of(knowing, Model(MODEL), num_rows=2, slowdown=SLOWER, draft_length="auto")
    engine.submit(request_of(knowing, [1, 2], 1, max_new_tokens=400))
    for _ in range(30):
        engine.step()
    engine._schedule.learn = lambda *_: None  # type: ignore[method-assign]
    pacing: Any = engine._schedule._pacing
    pacing.num_tokens = lambda num_answered, room: 1 if num_answered else 512
    long = request_of(knowing, np.random.default_rng(1).integers(60, size=90).tolist(), 2)
    engine.submit(long)
    drafted = []
    while long.num_output == 0 and engine.running:
        before = engine.running[0].stats.drafted
        engine.step()
        drafted.append(engine.running[0].stats.drafted - before)
    assert sum(count > 0 for count in drafted[-30:]) >= 10


def test_a_tokenizer_that_raises_ends_its_own_request() -> None:
    class Picky:
        def decode(self, tokens: Any, **_: Any) -> str:
            if 3 in tokens:
                raise UnicodeError("three")
            return "x" * len(tokens)

    class WithTokenizer(TableModel):
        tokenizer = Picky()

    target = WithTokenizer(7, 2, TABLE.table)
    how: dict[str, Any] = {"sampling": fr.Sampling(seed=1), "max_new_tokens": 12}
    outs = fr.generate(target, [[1, 2], [1, 1]], drafter=None, errors="return", **how)
    whole = fr.generate(TABLE, [[1, 2], [1, 1]], drafter=None, **how)
    for out, expected in zip(outs, whole, strict=True):
        if 3 in expected.tokens:
            assert out.finish_reason == "error"
            assert "UnicodeError('three')" in (out.error or "")
            assert out.tokens == expected.tokens[: len(out.tokens)]
        else:
            assert out.tokens == expected.tokens
    assert {out.finish_reason for out in outs} >= {"error"}


def test_a_stream_that_is_never_read_puts_back_what_it_took() -> None:
    target, drafter = TableModel.random(50, 1, seed=3), Suffix(remember=True)
    how: dict[str, Any] = {"drafter": drafter, "max_new_tokens": 30, "draft_length": 4}
    first = fr.generate(target, [1], sampling=fr.Sampling(seed=1), **how)
    fr.stream(target, [1], **how).close()
    fr.stream(target, [1], **how)  # and one that is simply dropped
    again = fr.generate(target, [1], sampling=fr.Sampling(seed=1), **how)
    assert again.stats.accepted > first.stats.accepted


def test_what_was_learned_keeps_no_draft_model_alive() -> None:
    for _ in range(3):
        drafter = Model(noisy_copy(MODEL, 0.1))
        kept = ref(drafter)
        fr.generate(TARGET, [1, 2], drafter=drafter, max_new_tokens=4)
        del drafter
        gc.collect()
        assert kept() is None
