"""Clients that ask a server for streams, and when each part of an answer came.

A small client on sockets: on a machine of two cores a large one would be measured too.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Stream:
    """One answer: when it was asked for, and its texts with the times they came."""

    asked: float
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    is_whole: bool = False


@dataclass(frozen=True)
class Turn:
    """The answers of a server, and the time that counts."""

    streams: list[Stream]
    start: float
    seconds: float

    def counts(self, moment: float) -> bool:
        return self.start <= moment < self.start + self.seconds


Body = Callable[[int], Mapping[str, Any]]
"""The body of the request of a number."""


async def drive(port: int, body: Body, num_clients: int, seconds: float) -> Turn:
    """Keep so many requests open for a while, each client with a new one when its last has ended.

    All of them ask at once at first.  The time that counts begins when as many answers have ended
    as there are clients, or after `seconds`: until then a server that reads prompts first has given
    less than one that does not.  When it is up, what is open is left: the server notices that its
    clients went away.
    """
    streams: list[Stream] = []
    settled = asyncio.Event()

    async def client() -> None:
        while True:
            stream = Stream(time.perf_counter())
            number = len(streams)
            streams.append(stream)
            await ask(port, body(number), stream)
            if sum(stream.is_whole for stream in streams) >= num_clients:
                settled.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client()) for _ in range(num_clients)]
        waiting = group.create_task(settled.wait())
        await asyncio.wait([waiting, *tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        start = time.perf_counter()
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in (waiting, *tasks):
            task.cancel()
    return Turn(streams, start, seconds)


async def answer_all(port: int, body: Body, num_clients: int, num_requests: int) -> Turn:
    """Have so many requests answered, so many at a time; the time counts until the last has ended.

    Two ways to answer the same requests with the same texts have then done the same work, which
    they have not where a window of time is cut out: prompts are read before tokens are given.
    """
    streams: list[Stream] = []
    start = time.perf_counter()

    async def client() -> None:
        while (number := len(streams)) < num_requests:
            streams.append(Stream(time.perf_counter()))
            await ask(port, body(number), streams[number])

    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(client())
    return Turn(streams, start, time.perf_counter() - start)


async def ask(port: int, body: Mapping[str, Any], stream: Stream) -> None:
    """Send a chat request, and note what comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        content = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        status = (await reader.readline()).decode()
        is_chunked = False
        while (line := await reader.readline()).strip():
            is_chunked |= line.lower().replace(b" ", b"").startswith(b"transfer-encoding:chunked")
        if " 200 " not in status:
            raise RuntimeError(f"{status.strip()}: {(await reader.read(2000)).decode()}")
        await _read_events(reader, is_chunked, stream)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_events(reader: asyncio.StreamReader, is_chunked: bool, stream: Stream) -> None:
    rest = b""
    while data := await (_chunk(reader) if is_chunked else reader.read(65536)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                _note(json.loads(line[6:]), stream)


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readline()).partition(b";")[0] or b"0", 16)
    data = await reader.readexactly(size + 2)
    return data[:-2]


def _note(event: Mapping[str, Any], stream: Stream) -> None:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    for choice in event.get("choices", ()):
        if text := choice["delta"].get("content"):
            stream.times.append(time.perf_counter())
            stream.texts.append(text)
        stream.is_whole |= choice.get("finish_reason") is not None


def figures(turns: Sequence[Turn], count: Callable[[str], int]) -> dict[str, Any]:
    """Tokens a second, and percentiles in milliseconds, of what came in the time that counts.

    inter_token: the time since the part before, over the tokens of a part, once for each of them.
    pause: the time between two parts.  count: tokens of a text, the same for every server.
    """
    first, between, pauses, num_tokens, num_answers = [], [], [], 0, 0
    for turn in turns:
        for stream in turn.streams:
            before = stream.asked
            for index, (moment, text) in enumerate(zip(stream.times, stream.texts, strict=True)):
                gap, before = moment - before, moment
                if not turn.counts(moment):
                    continue
                size = max(1, count(text))
                num_tokens += size
                if index == 0:
                    first.append(gap)
                    continue
                pauses.append(gap)
                between += [gap / size] * size
            num_answers += stream.is_whole and turn.counts(before)
    return {
        "tokens_per_second": num_tokens / sum(turn.seconds for turn in turns),
        "answers": num_answers,
        "first_token_ms": percentiles(first),
        "inter_token_ms": percentiles(between),
        "pause_ms": percentiles(pauses),
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Of seconds, in milliseconds; None of none."""
    if not values:
        return None
    found = 1e3 * np.percentile(values, [50, 95, 99])
    return {f"p{share}": round(float(x), 2) for share, x in zip((50, 95, 99), found, strict=True)}
