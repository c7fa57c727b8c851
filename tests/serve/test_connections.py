"""Connections at sockets: silent ones make room, half-closed ones get their answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from asking import KEYS
from serving import run, until

from forerun.serve.admission.keys import ANYBODY
from forerun.serve.http import connections
from forerun.serve.http.connections import Protocol
from forerun.serve.http.lifecycle import bind
from forerun.serve.http.requests import Bounds

pytestmark = pytest.mark.serve

GET = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"
SLOW = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
CLOSING = SLOW.replace(b"Host: a", b"Host: a\r\nConnection: close")
STREAM = GET % b"/stream"
PROBE = SLOW.replace(b"slow", b"health")  # takes as long


class Small(Protocol):
    most_connections = 10


class App:
    """Answers at once, and at /slow when the gate opens; at /key it has been shown one, and
    /stream ends when the gate opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.num_slow = 0
        self.has_left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["key"] = (
            KEYS.find("Bearer sk-alice-123") if scope["path"] == "/key" else ANYBODY
        )
        if scope["path"] == "/stream":
            await self._stream(receive, send)
            return
        if scope["path"] in ("/slow", "/health") and scope["method"] == "POST":
            self.num_slow += 1
            leaving = asyncio.create_task(self._leave(receive))
            await self.gate.wait()
            leaving.cancel()
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"fine"})

    async def _stream(self, receive: Any, send: Any) -> None:
        leaving = asyncio.create_task(self._leave(receive))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for word in (b"data: one\n\n", b"data: two\n\n"):
            await send({"type": "http.response.body", "body": word, "more_body": True})
            self.num_slow += 1
            await self.gate.wait()
        leaving.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _leave(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.has_left.set()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, path: bytes = b"/") -> int:
        """The status of an answer."""
        self.writer.write(GET % path)
        return await self.answer()

    async def answer(self) -> int:
        head = b""
        while not head or b" 100 " in head:
            head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await self.reader.readexactly(size)
        return int(head.split()[1])

    async def is_open(self) -> bool:
        try:
            async with asyncio.timeout(0.05):
                return await self.reader.read(1) != b""
        except TimeoutError:
            return True
        except OSError:
            return False


@asynccontextmanager
async def served(protocol: type[Protocol] = Small) -> AsyncIterator[tuple[App, Any]]:
    """An app at a socket, and a function that connects to it."""
    app, clients = App(), list[Client]()
    bound = bind("127.0.0.1", 0, Bounds())
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve([bound]))
    await until(lambda: server.started)

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection(*bound.getsockname())))
        return clients[-1]

    try:
        yield app, connect
    finally:
        app.gate.set()
        for client in clients:
            client.writer.close()
        server.should_exit = True
        await serving


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_idle_connections_make_room(sent: bytes) -> None:
    async def main() -> None:
        async with served() as (_, connect):
            idle = [await connect() for _ in range(50)]
            for client in idle:
                client.writer.write(sent)
            for path in (b"/ready", b"/health", b"/", b"/v1/models"):
                assert await (await connect()).ask(path) == 200
            assert [await client.is_open() for client in idle].count(True) <= Small.most_connections

    run(main())


def test_those_who_showed_a_key_are_spared() -> None:
    async def main() -> None:
        async with served() as (_, connect):
            known, unknown = await connect(), await connect()
            assert [await known.ask(b"/key"), await unknown.ask()] == [200, 200]
            for _ in range(20):
                await connect()
            assert await known.is_open()
            assert not await unknown.is_open()
            assert await known.ask(b"/key") == 200

    run(main())


def test_a_request_on_its_way_is_not_cut_off_and_probes_are_answered_when_all_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_PROBED", 3)

    async def main() -> None:
        async with served() as (app, connect):
            busy = [await connect() for _ in range(Small.most_connections)]
            for client in busy:
                client.writer.write(SLOW)
            await until(lambda: app.num_slow == len(busy))
            assert await (await connect()).ask(b"/health") == 200
            assert await (await connect()).ask(b"/ready") == 200
            assert await (await connect()).ask() == 503
            app.gate.set()
            assert {await client.answer() for client in busy} == {200}
            assert await (await connect()).ask() == 200

    run(main())


def test_beyond_those_nobody_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_PROBED", 2)

    async def main() -> None:
        async with served() as (app, connect):
            for number in range(Small.most_connections + 2):
                (await connect()).writer.write(PROBE)
                await until(lambda number=number: app.num_slow > number)  # type: ignore[misc]
            more = await connect()
            assert not await more.is_open()

    run(main())


@pytest.mark.parametrize("sent", [SLOW, CLOSING])
def test_half_a_socket_gets_its_answer(sent: bytes) -> None:
    async def main() -> None:
        async with served() as (app, connect):
            client = await connect()
            client.writer.write(sent)
            client.writer.write_eof()
            await until(lambda: app.num_slow == 1)
            await asyncio.sleep(3 * connections.PROBE_SECONDS)
            assert not app.has_left.is_set()
            app.gate.set()
            assert await client.answer() == 200
            assert await client.reader.read() == b""  # and is closed

    run(main())


def test_half_a_socket_gets_the_rest_of_its_stream() -> None:
    async def main() -> None:
        async with served() as (app, connect):
            client = await connect()
            client.writer.write(STREAM)
            await client.reader.readuntil(b"one\n\n")
            client.writer.write_eof()
            await asyncio.sleep(3 * connections.PROBE_SECONDS)
            assert not app.has_left.is_set()
            app.gate.set()
            rest = await client.reader.read()
            assert b": ping\n\n" in rest
            assert b"data: two\n\n" in rest
            assert rest.endswith(b"0\r\n\r\n")

    run(main())


@pytest.mark.parametrize("sent", [SLOW, CLOSING, STREAM])
def test_one_that_has_gone_is_noticed(sent: bytes) -> None:
    async def main() -> None:
        async with served() as (app, connect):
            client = await connect()
            client.writer.write(sent)
            await until(lambda: app.num_slow == 1)
            client.writer.close()
            async with asyncio.timeout(10):
                await app.has_left.wait()

    run(main())


def test_requests_that_were_sent_together_are_all_answered_on_half_a_socket() -> None:
    async def main() -> None:
        async with served() as (_, connect):
            client = await connect()
            client.writer.write(GET % b"/" + GET % b"/key")
            client.writer.write_eof()
            assert [await client.answer(), await client.answer()] == [200, 200]
            assert await client.reader.read() == b""

    run(main())


def test_half_a_request_is_given_up() -> None:
    async def main() -> None:
        async with served() as (_, connect):
            client = await connect()
            client.writer.write(b"GET / HTTP/1.1\r\n")
            client.writer.write_eof()
            assert await client.reader.read() == b""

    run(main())
