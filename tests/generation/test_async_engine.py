"""The engine that coroutines await."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import forerun as fr
from forerun.drafters import Suffix
from forerun.models import TableModel
from forerun.models.function import FunctionModel

TABLE = TableModel.random(vocab_size=7, order=2, seed=0)
HOW: dict[str, Any] = {"max_new_tokens": 20}


def sampling(seed: int) -> fr.Sampling:
    return fr.Sampling(temperature=0.8, seed=seed)


def run(work: Callable[[fr.AsyncEngine], Awaitable[Any]], target: Any = TABLE, **how: Any) -> Any:
    """Some work with an engine that is closed afterwards, in at most a minute."""

    async def main() -> Any:
        async with fr.AsyncEngine(target, **{"drafter": None} | how) as engine:
            return await work(engine)

    return asyncio.run(asyncio.wait_for(main(), 60))


def plain(prompt: Any, seed: int, count: int = 20) -> Any:
    return fr.generate(TABLE, prompt, drafter=None, sampling=sampling(seed), max_new_tokens=count)


@pytest.mark.parametrize("drafter", [None, fr.drafters.Suffix()], ids=["plain", "suffix"])
def test_many_at_once_get_the_texts_they_would_get_alone(drafter: Any) -> None:
    async def work(engine: fr.AsyncEngine) -> Any:
        answers = [
            engine.submit([1, seed % 7], sampling=sampling(seed), **HOW) for seed in range(20)
        ]
        return await asyncio.gather(*answers)

    outs = run(work, drafter=drafter, max_batch=4)
    assert [out.tokens for out in outs] == [plain([1, s % 7], s).tokens for s in range(20)]
    assert {out.finish_reason for out in outs} == {"length"}


def test_pieces_come_as_they_are_made_and_add_up() -> None:
    async def work(engine: fr.AsyncEngine) -> Any:
        answer = engine.submit([1], sampling=sampling(3), **HOW)
        pieces = [piece async for piece in answer]
        assert [piece async for piece in answer] == []
        return pieces, await answer, await answer

    pieces, out, again = run(work)
    assert [token for piece in pieces for token in piece.tokens] == out.tokens == again.tokens
    assert [piece.finish_reason for piece in pieces][-1] == "length"
    assert len(pieces) == 20


def test_one_is_aborted_and_the_others_go_on() -> None:
    async def work(engine: fr.AsyncEngine) -> Any:
        long = engine.submit([1], sampling=sampling(1), max_new_tokens=100_000)
        other = engine.submit([2], sampling=sampling(2), **HOW)
        async for _ in long:
            assert long.abort()
            break
        out = await long
        assert not long.abort()
        return out, await other

    out, other = run(work, max_batch=2)
    assert out.finish_reason == "aborted"
    assert out.tokens == plain([1], 1, max(1, len(out.tokens))).tokens[: len(out.tokens)]
    assert other.tokens == plain([2], 2).tokens


def test_an_answer_goes_on_in_another_engine() -> None:
    """What failover rests on: prompt, seed and the tokens so far are all that is needed."""

    async def part(engine: fr.AsyncEngine) -> Any:
        answer = engine.submit([1], sampling=sampling(8), max_new_tokens=60)
        tokens: list[int] = []
        async for piece in answer:
            tokens += piece.tokens
            if len(tokens) >= 11:
                break
        return tokens

    tokens = run(part, drafter=fr.drafters.NGram())

    async def rest(engine: fr.AsyncEngine) -> Any:
        return await engine.submit([1], sampling=sampling(8), max_new_tokens=60, resume=tokens)

    out = run(rest, drafter=fr.drafters.Suffix(), draft_length=3)
    assert out.tokens == plain([1], 8, 60).tokens


def test_a_failure_reaches_the_one_who_asked() -> None:
    def logits(ids: Any) -> Any:
        return np.full(7, np.nan) if ids[0] == 6 and len(ids) > 2 else np.log(TABLE.probs(ids))

    async def work(engine: fr.AsyncEngine) -> Any:
        bad, good = (engine.submit([first], sampling=sampling(1), **HOW) for first in (6, 1))
        with pytest.raises(fr.GenerationError, match="at output position 2") as caught:
            await bad
        with pytest.raises(fr.GenerationError):
            _ = [piece async for piece in bad]
        return caught.value.results, await good

    out, good = run(work, FunctionModel(logits, vocab_size=7, logits=True))
    assert (out.finish_reason, len(out.tokens)) == ("error", 2)
    assert good.tokens == plain([1], 1).tokens


def test_a_model_that_raises_ends_everything_with_its_error() -> None:
    are_there = threading.Event()

    class Broken(TableModel):
        def score(self, *args: Any) -> Any:
            are_there.wait(30)
            raise MemoryError("no room")

    async def work(engine: fr.AsyncEngine) -> Any:
        answers = [engine.submit([1], **HOW) for _ in range(2)]
        are_there.set()
        for answer in answers:
            with pytest.raises(fr.GenerationError, match="no room") as caught:
                await answer
            assert isinstance(caught.value.__cause__, MemoryError)
            assert caught.value.results.finish_reason == "error"
        with pytest.raises(fr.GenerationError, match="has failed"):
            engine.submit([1], **HOW)

    run(work, Broken(7, 2, TABLE.table))


def test_closing_ends_what_is_running() -> None:
    async def main() -> Any:
        engine = fr.AsyncEngine(TABLE, drafter=None)
        answer = engine.submit([1], max_new_tokens=100_000)
        await anext(answer)
        await engine.close()
        with pytest.raises(fr.InputError, match="closed"):
            engine.submit([1])
        pieces = [piece async for piece in answer]
        assert pieces[-1].finish_reason == "cancelled"
        return await answer

    assert asyncio.run(asyncio.wait_for(main(), 60)).finish_reason == "cancelled"


def test_a_drafter_that_fails_to_close_keeps_nobody_waiting() -> None:
    class Stuck(Suffix):
        def close(self, state: Any) -> None:
            raise OSError("disk full")

    async def main() -> None:
        engine = fr.AsyncEngine(TABLE, drafter=Stuck())
        answer = engine.submit([1], max_new_tokens=100_000)
        await anext(answer)
        await engine.close()
        assert (await answer).finish_reason == "cancelled"
        assert engine.failure is None

    with pytest.warns(RuntimeWarning, match="suffix failed at the end: OSError"):
        asyncio.run(asyncio.wait_for(main(), 60))


def test_a_loop_that_is_gone_harms_nobody_else() -> None:
    async def leave(engine: fr.AsyncEngine) -> None:
        engine.submit([1], max_new_tokens=100_000)

    async def work(engine: fr.AsyncEngine) -> Any:
        await asyncio.to_thread(lambda: asyncio.run(leave(engine)))  # its loop ends, it does not
        return await engine.submit([2], sampling=sampling(2), **HOW)

    assert run(work, max_batch=2).tokens == plain([2], 2).tokens


def test_two_may_iterate_over_one_answer() -> None:
    async def work(engine: fr.AsyncEngine) -> int:
        answer = engine.submit([1], **HOW)

        async def count() -> int:
            return sum([1 async for _ in answer])

        return sum(await asyncio.gather(count(), count()))

    assert run(work) == 20


def test_submitting_needs_a_running_loop() -> None:
    engine = fr.AsyncEngine(TABLE, drafter=None)
    with pytest.raises(fr.InputError, match="running event loop"):
        engine.submit([1])
    asyncio.run(engine.close())


def test_options_of_a_drafter_without_one_are_noted() -> None:
    async def work(engine: fr.AsyncEngine) -> Any:
        return await engine.submit([1], **HOW)

    assert run(work, tree=4).stats.notes == ["no drafter, so tree did nothing"]


def test_bad_requests_are_refused_at_once() -> None:
    async def work(engine: fr.AsyncEngine) -> None:
        for options, message in (
            ({"timeout": 0}, "deadline has passed"),
            ({"timeout": -1.0}, "deadline has passed"),
            ({"sampling": fr.Sampling(n=2)}, "one answer"),
            ({"max_new_tokens": 0}, "max_new_tokens"),
            ({"resume": [1] * 200}, "nothing left"),
            ({"logprobs_of": "nobody"}, "logprobs_of is not known"),
            ({"priority": "high"}, "priority is no whole number"),
            ({"timeout": float("nan")}, "deadline has passed"),
            ({"sampling": {"temperature": 0.5}}, "Write Sampling"),
            ({"max_new_tokens": 2.5}, "max_new_tokens has a wrong type"),
            ({"resume": None}, "resume does not fit"),
            ({"resume": [[1, 2]]}, "resume does not fit"),
        ):
            with pytest.raises(fr.InputError, match=message):
                engine.submit([1], **options)

    run(work)


def test_a_full_engine_refuses() -> None:
    async def work(engine: fr.AsyncEngine) -> int:
        refused = 0
        answers = []
        for seed in range(50):
            try:
                answers.append(engine.submit([1], sampling=sampling(seed), max_new_tokens=200))
            except fr.EngineFullError:
                refused += 1
        await asyncio.gather(*answers)
        return refused

    assert run(work, max_batch=1, max_waiting=3) > 10


def test_a_timeout_ends_a_request() -> None:
    """By the clock that the tests set, which goes on by itself in every round."""

    async def work(engine: fr.AsyncEngine) -> Any:
        return await engine.submit([1], max_new_tokens=100_000, timeout=0.5)

    assert run(work).finish_reason == "deadline"


def test_who_gives_up_waiting_does_not_end_the_request() -> None:
    """Another may be waiting for it; `abort` ends it, as the page says."""

    async def work(engine: fr.AsyncEngine) -> Any:
        answer = engine.submit([1], max_new_tokens=10**9)
        other = asyncio.ensure_future(answer)
        await anext(answer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answer, 0.01)
        assert engine.num_running == 1
        assert not other.done()
        assert answer.abort()
        return await other

    assert run(work).finish_reason == "aborted"


def test_an_engine_that_is_dropped_ends_its_thread() -> None:
    """Not before its answers have ended; then nothing keeps it, not even an answer that is held."""

    async def main() -> Any:
        engine = fr.AsyncEngine(TABLE, drafter=None)
        dropped, thread = ref(engine), engine._worker.thread
        answer = engine.submit([1], sampling=sampling(3), **HOW)
        del engine
        gc.collect()
        out = await answer
        gc.collect()
        assert dropped() is None
        await asyncio.to_thread(thread.join, 60)
        return out, answer, thread.is_alive()

    out, answer, is_alive = asyncio.run(asyncio.wait_for(main(), 60))
    assert out.tokens == plain([1], 3).tokens
    assert not answer.abort()
    assert not is_alive


def test_pieces_carry_the_logprobs_of_their_tokens() -> None:
    async def work(engine: fr.AsyncEngine) -> Any:
        asked = engine.submit([1], sampling=sampling(3), logprobs=2, resume=[2, 0], **HOW)
        other = engine.submit([1], sampling=sampling(3), **HOW)
        pieces = [piece async for piece in asked]
        return pieces, await asked, [piece async for piece in other]

    pieces, out, others = run(work, drafter=Suffix(), draft_length=3)
    parts = [piece.logprobs for piece in pieces]
    assert [one for part in parts for one in part] == out.logprobs
    for piece in pieces:
        assert [one.token for one in piece.logprobs] == piece.tokens
    assert len(out.logprobs) == len(out.tokens) - 2, "none of what was given"
    assert {piece.logprobs for piece in others} == {None}


def test_it_says_how_many_run_and_wait_and_why_it_failed() -> None:
    fails, goes_on = threading.Event(), threading.Event()

    class Gated(TableModel):
        def score(self, *args: Any) -> Any:
            if fails.is_set():
                goes_on.wait(30)
                raise MemoryError("no room")
            return super().score(*args)

    async def work(engine: fr.AsyncEngine) -> Any:
        assert (engine.num_running, engine.num_waiting, engine.failure) == (0, 0, None)
        answers = [engine.submit([1], max_new_tokens=100_000) for _ in range(5)]
        await asyncio.gather(*map(anext, answers[:2]))
        fails.set()
        assert (engine.num_running, engine.num_waiting, engine.failure) == (2, 3, None)
        goes_on.set()
        with pytest.raises(fr.GenerationError):
            await answers[0]
        assert isinstance(engine.failure, MemoryError)
        await engine.close()
        assert (engine.num_running, engine.num_waiting) == (0, 0)

    run(work, Gated(7, 2, TABLE.table), max_batch=2)


def test_pieces_add_up_where_the_engine_fails_after_a_round_was_decided() -> None:
    class Forgetful(TableModel):
        num_commits = 0

        def commit(self, *args: Any) -> None:
            self.num_commits += 1
            if self.num_commits == 3:
                raise MemoryError("no room")
            super().commit(*args)

    async def work(engine: fr.AsyncEngine) -> Any:
        ended = engine.submit([1], sampling=sampling(1), resume=[2], max_new_tokens=4)
        cut = engine.submit([1], sampling=sampling(1), resume=[2], max_new_tokens=9)
        pieces = [piece async for piece in ended]
        with pytest.raises(fr.GenerationError) as caught:
            await cut
        told = [await anext(cut)]
        while told[-1].finish_reason is None:
            told.append(await anext(cut))
        return await ended, pieces, caught.value.results, told

    out, pieces, partial, told = run(work, Forgetful(7, 2, TABLE.table))
    assert (out.finish_reason, len(out.tokens)) == ("length", 4), "it was done already"
    assert [token for piece in pieces for token in piece.tokens] == out.tokens[1:]
    assert partial.finish_reason == "error"
    assert [token for piece in told for token in piece.tokens] == partial.tokens[1:]
    assert {piece.finish_reason for piece in told[:-1]} == {None}
    assert told[-1].tokens


def test_nobody_waits_for_a_thread_that_died_of_something_unusual() -> None:
    class Panic(BaseException):
        """Like those of libraries in Rust."""

    class Panicking(TableModel):
        def score(self, *args: Any) -> Any:
            raise Panic("unreachable")

    async def work(engine: fr.AsyncEngine) -> Any:
        with pytest.raises(fr.GenerationError, match="unreachable"):
            await engine.submit([1], **HOW)
        assert "Panic" in str(engine.failure)

    run(work, Panicking(7, 2, TABLE.table))
