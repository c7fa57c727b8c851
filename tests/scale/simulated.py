"""A fleet in one seeded loop: real ingress, simulated replicas, clock and network.

The desk, the requests, the failover and the blame are those that ship.  Replicas write a text that
prompt and seed decide on, and hang, die, come back and are slow; messages are late, come twice, in
another order or not at all.  Time is the loop's own: it jumps to what happens next.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.base.clock import timed_by
from forerun.engine.results import Fate, Piece
from forerun.engine.text import TextStream
from forerun.scale.blame import Blame
from forerun.scale.ingress import Fleet
from forerun.scale.messages import (
    Beat,
    Ending,
    Growth,
    Message,
    Refusal,
    ReplicaLostError,
    Work,
)
from forerun.scale.replica import BEAT_SECONDS
from forerun.serve.admission.admission import Desk
from forerun.serve.openai.fingerprint import ModelCard

KNOWN_AFTER = 10.0
"""Seconds for which a router may go on to choose a replica that hangs: Ray's memory of queues."""
CHARACTERS = "aé世🦊 .STOP"


class Jumping(selectors.SelectSelector):
    """Waits for nothing: the clock of its loop jumps instead."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("Nothing will ever happen again.")
        self.seconds += max(timeout, 0.0)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only where it would wait."""

    def __init__(self) -> None:
        self.jumping = Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.seconds


def simulate(main: Coroutine[Any, Any, Any], seed: int) -> Any:
    """Run to the end; everything drawn comes from the seed."""
    state = random.getstate()
    random.seed(seed)
    loop = SimulatedLoop()
    try:
        with timed_by(loop.time):
            return loop.run_until_complete(main)
    finally:
        random.setstate(state)
        loop.close()


class Bytes:
    """A tokenizer whose tokens are bytes: most characters take several."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())


def tokens_of(prompt: Any, seed: int) -> Iterator[int]:
    """What a model says to a prompt, without end."""
    drawn = random.Random(f"{list(prompt)} {seed}")
    while True:
        yield from drawn.choice(CHARACTERS).encode()


@dataclass
class Network:
    """How messages fare on their way; chances of each."""

    lost: float = 0.0
    twice: float = 0.0
    late: float = 0.0  # after those that were sent later
    delay: float = 0.01  # seconds, at most


class Channel:
    """Brings the messages of one answer to the ingress."""

    def __init__(self, network: Network, drawn: random.Random) -> None:
        self._network, self._drawn = network, drawn
        self._last = 0.0  # when the last message arrives
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        drawn, network = self._drawn, self._network
        if drawn.random() < network.lost:
            return
        for _ in range(2 if drawn.random() < network.twice else 1):
            self._bring(message, is_late=drawn.random() < network.late)

    def _bring(self, message: Any, *, is_late: bool) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + self._drawn.uniform(0.0, self._network.delay)
        if is_late:
            at += self._drawn.uniform(0.0, 2.0)
        else:
            at = self._last = max(self._last, at)
        loop.call_at(at, self.arrived.put_nowait, message)


@dataclass
class SimulatedReplica:
    """Writes answers until it hangs or dies."""

    name: str
    drawn: random.Random
    round_seconds: float
    hangs_from: float = -1.0
    hangs_until: float = -1.0
    is_dead: bool = False
    writing: set[asyncio.Task[None]] = field(default_factory=set)

    def is_known_to_hang(self, now: float) -> bool:
        return self.hangs_from + KNOWN_AFTER < now < self.hangs_until

    def begin(self, work: Work, channel: Channel) -> asyncio.Task[None]:
        task = asyncio.create_task(self._write(work, channel))
        self.writing.add(task)
        task.add_done_callback(self.writing.discard)
        return task

    async def _sleep(self, seconds: float) -> None:
        """Pass time, and more of it where the process is stopped."""
        await asyncio.sleep(seconds)
        loop = asyncio.get_running_loop()
        while self.hangs_from <= loop.time() < self.hangs_until:
            await asyncio.sleep(self.hangs_until - loop.time())

    async def _write(self, work: Work, channel: Channel) -> None:
        loop, options = asyncio.get_running_loop(), work.options
        timeout = options.timeout
        deadline = None if timeout is None else loop.time() + timeout
        await self._sleep(0.0)
        channel.send(Beat())
        await self._sleep(self.drawn.uniform(0.0, 3 * self.round_seconds))
        number = 0

        def send(message: Message) -> None:
            nonlocal number
            channel.send(replace(message, number=number))
            number += 1

        send(Message((), Growth(), self.name))
        text = TextStream(Bytes(), options.stop)
        said = tokens_of(work.prompt, options.sampling.seed)
        given = list(work.given)
        for token in given:
            assert token == next(said), "the output so far is another one"
            text.push(token)
        text.release()
        count, reason = len(given), None
        while reason is None:
            await self._pass_a_round(channel)
            tokens: list[int] = []
            if deadline is not None and loop.time() >= deadline:
                reason = "deadline"
            for _ in range(0 if reason else self.drawn.randint(1, 5)):
                tokens.append(next(said))
                count += 1
                if text.push(tokens[-1]):
                    reason = "stop"
                elif count == options.max_new_tokens:
                    reason = "length"
                if reason:
                    break
            parts = [(part, Fate.BONUS) for _, part in text.release_parts(final=reason is not None)]
            piece = Piece(parts, tokens, [Fate.BONUS] * len(tokens), finish_reason=reason)
            if reason is None:
                send(Message([piece], Growth(), self.name))
        seed = options.sampling.seed
        send(Ending([piece], Growth(), self.name, text=text.shown, seed=seed))

    async def _pass_a_round(self, channel: Channel) -> None:
        """A round, and now and then a long one, with beats."""
        left = self.round_seconds * (200 if self.drawn.random() < 0.003 else 1)
        while left > BEAT_SECONDS:
            await self._sleep(BEAT_SECONDS)
            channel.send(Beat())
            left -= BEAT_SECONDS
        await self._sleep(left)

    def die(self) -> None:
        self.is_dead = True
        for task in list(self.writing):
            task.cancel()


class SimulatedFleet:
    """Replicas, and a router that knows of deaths at once and of hangs after a while."""

    def __init__(self, seed: int, network: Network, count: int) -> None:
        self.drawn = random.Random(seed)
        self.network = network
        self._numbers = 0
        self.replicas = [self._started() for _ in range(count)]

    def _started(self) -> SimulatedReplica:
        self._numbers += 1
        seconds = self.drawn.choice([0.02, 0.05, 0.1])
        drawn = random.Random(self.drawn.random())
        return SimulatedReplica(f"replica {self._numbers}", drawn, seconds)

    async def answer(self, work: Work) -> AsyncIterator[Message | Refusal | Beat]:
        replica = self._chosen(work)
        while replica is None:  # it waits in the router
            await asyncio.sleep(0.1)
            replica = self._chosen(work)
        channel = Channel(self.network, self.drawn)
        writing = replica.begin(work, channel)
        tells_of_death = self.drawn.random() < 0.8  # else the connection is just silent

        def over(task: asyncio.Task[None]) -> None:
            if task.cancelled() and tells_of_death:
                channel.arrived.put_nowait(ReplicaLostError("killed"))

        writing.add_done_callback(over)
        try:
            while True:
                message = await channel.arrived.get()
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            writing.cancel()

    def _chosen(self, work: Work) -> SimulatedReplica | None:
        now = asyncio.get_running_loop().time()
        there = [r for r in self.replicas if not r.is_dead and not r.is_known_to_hang(now)]
        for replica in there:
            if replica.name == work.replica:
                return replica
        others = [replica for replica in there if replica.name not in work.avoid]
        return self.drawn.choice(others or there) if there else None

    async def misfortune(self, kind: str, at: float, seconds: float) -> None:
        """Hang or kill any replica at a time, for so long."""
        await asyncio.sleep(at)
        place = self.drawn.randrange(len(self.replicas))
        replica, loop = self.replicas[place], asyncio.get_running_loop()
        if kind == "hang":
            replica.hangs_from, replica.hangs_until = loop.time(), loop.time() + seconds
            return
        replica.die()
        await asyncio.sleep(seconds)
        self.replicas[place] = self._started()


def desk_over(replicas: SimulatedFleet, max_batch: int) -> Desk:
    """The ingress's desk, as `make_ingress` makes it."""
    card = ModelCard("simulated", 256, None, Bytes(), {}, "digest")
    fleet = Fleet(replicas, tokenizer=card.tokenizer, model_digest=card.digest)
    return Desk(card, {"none": None}, max_batch=max_batch, engines=fleet, trial=Blame())


async def ended(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
