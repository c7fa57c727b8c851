"""Texts and deadlines of a fleet whose replicas hang and die and whose network is bad, over many
seeds.  See `simulated.py`."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from simulated import (
    Bytes,
    Network,
    SimulatedFleet,
    desk_over,
    ended,
    simulate,
    tokens_of,
)

from forerun.engine.answer_options import AnswerOptions
from forerun.engine.text import TextStream
from forerun.sampling.options import Sampling
from forerun.scale.failover import GRACE, PATIENCE
from forerun.scale.ingress import PAUSE
from forerun.serve.admission.ask import Ask

LATE = GRACE + 2 * PAUSE + 0.01
"""Seconds after its deadline in which an answer ends, whatever happens."""


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Every loss is logged with its traceback, and there are thousands."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def whole_text(ask: Ask, seed: int) -> str:
    """What the model says, undisturbed."""
    text = TextStream(Bytes(), ask.options.stop)
    for token in islice(tokens_of(ask.prompts[0], seed), ask.options.max_new_tokens):
        if text.push(token):
            break
    text.release(final=True)
    return text.shown


def an_ask(drawn: random.Random) -> Ask:
    return Ask(
        prompts=[[drawn.randrange(256) for _ in range(drawn.randint(1, 12))]],
        options=AnswerOptions(
            sampling=Sampling(seed=drawn.randrange(1 << 30)),
            max_new_tokens=drawn.choice([1, 7, 25, 80]),
            stop=drawn.choice([(), ("STOP", "OO"), ("🦊世",)]),
            timeout=drawn.choice([None, 0.5, 4.0, 15.0]),
        ),
    )


async def asked(desk: Any, ask: Ask, name: str, at: float) -> tuple[float, float]:
    """One client: its text and its deadline hold.  Seconds in all, and of the longest pause."""
    await asyncio.sleep(at)
    loop = asyncio.get_running_loop()
    began = last = loop.time()
    longest, pieces = 0.0, []
    ticket = desk.enter(ask, request_id=name)
    async for _, piece in ticket:
        pieces.append(piece)
        longest, last = max(longest, loop.time() - last), loop.time()
    (answer,) = await ticket.results()
    seconds = loop.time() - began
    whole = whole_text(ask, answer.seed)
    shown = "".join(piece.text for piece in pieces)
    if answer.finish_reason == "deadline":
        assert ask.options.timeout is not None
        assert seconds >= ask.options.timeout - 1e-6
        unstopped = replace(ask, options=replace(ask.options, stop=()))
        assert whole_text(unstopped, answer.seed).startswith(shown)
        assert not any(stop in shown for stop in ask.options.stop)
    else:
        assert answer.finish_reason in ("length", "stop")
        assert shown == answer.text == whole
        assert [token for piece in pieces for token in piece.tokens] == answer.tokens
    assert sum(piece.finish_reason is not None for piece in pieces) == 1
    if ask.options.timeout is not None:
        assert seconds <= ask.options.timeout + LATE, (seconds, ask.options.timeout)
    return seconds, longest


async def a_day(seed: int) -> float:
    """Six requests and some misfortunes; the longest pause of any stream."""
    drawn = random.Random(seed)
    network = Network(
        lost=drawn.choice([0, 0, 0.01, 0.05]),
        twice=drawn.choice([0, 0.05]),
        late=drawn.choice([0, 0, 0.02]),
    )
    replicas = SimulatedFleet(seed, network, count=drawn.randint(1, 4))
    fates = [
        asyncio.create_task(
            replicas.misfortune(
                drawn.choice(["hang", "kill"]), drawn.uniform(0, 12), drawn.uniform(0.5, 60)
            )
        )
        for _ in range(drawn.randint(0, 4))
    ]
    async with desk_over(replicas, max_batch=8) as desk:
        names = [f"request {number}" for number in range(6)]
        clients = (asked(desk, an_ask(drawn), name, drawn.uniform(0, 10)) for name in names)
        results = await asyncio.gather(*clients)
        assert not desk.tickets
    await ended(fates)
    return max(longest for _, longest in results)


def check(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(a_day(seed), seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_texts_and_deadlines_hold_over_200_seeds() -> None:
    check(range(200))


@pytest.mark.slow
def test_texts_and_deadlines_hold_over_10_000_seeds() -> None:
    check(range(200, 10_200))


def test_a_network_that_loses_messages_is_not_held_against_a_request() -> None:
    """On these days one lost messages of its first tokens three times in a row."""
    for seed in (4198, 4306):
        simulate(a_day(seed), seed)


def test_the_same_seed_is_the_same_day() -> None:
    assert [simulate(a_day(seed), seed) for seed in (3, 4, 3, 4)] == 2 * [
        simulate(a_day(seed), seed) for seed in (3, 4)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_hang_is_a_pause_of_seconds_where_another_replica_is_there(seed: int) -> None:
    """One of two replicas is stopped for ten minutes: no stream waits for that."""

    async def work() -> float:
        replicas = SimulatedFleet(seed, Network(), count=2)
        fate = asyncio.create_task(replicas.misfortune("hang", 1.0, 600.0))
        async with desk_over(replicas, max_batch=8) as desk:
            asks = [
                Ask([[n]], AnswerOptions(Sampling(seed=n), max_new_tokens=150)) for n in range(8)
            ]
            clients = (asked(desk, ask, f"{n}", 0.1 * n) for n, ask in enumerate(asks))
            longest = max(pause for _, pause in await asyncio.gather(*clients))
        await ended([fate])
        return longest

    assert PATIENCE <= simulate(work(), seed) <= 2 * PATIENCE + 4


def test_a_hang_ends_no_deadline_where_there_is_no_other_replica() -> None:
    async def work() -> float:
        replicas = SimulatedFleet(0, Network(), count=1)
        fate = asyncio.create_task(replicas.misfortune("hang", 1.0, 600.0))
        async with desk_over(replicas, max_batch=2) as desk:
            ask = Ask([[1]], AnswerOptions(Sampling(seed=1), max_new_tokens=4000, timeout=15.0))
            seconds, _ = await asked(desk, ask, "a", 0.0)
        await ended([fate])
        return seconds

    assert 15.0 <= simulate(work(), 0) <= 15.0 + LATE
