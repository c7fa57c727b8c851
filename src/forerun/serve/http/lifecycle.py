"""A server's life: bound, ready, draining, gone."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from forerun.base.errors import InputError, explain
from forerun.serve.admission.admission import Desk
from forerun.serve.http.bounds import Bounds
from forerun.serve.http.connections import MOST_AT_A_TIME, Protocol
from forerun.serve.watching.logs import say

FAREWELL = 5
"""Seconds for the last responses to leave, after the desk is empty."""


def bind(host: str, port: int, bounds: Bounds) -> socket.socket:
    """A socket at an address, which does not listen yet; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        cure = "Use 127.0.0.1 for this machine alone, or 0.0.0.0 for every network it is in."
        raise InputError(explain("There is no such address.", repr(host), cure)) from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections whose reader is gone or stuck end
        patience = int(1000 * bounds.reader_seconds)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _bind_error(error, host, port) from error
    return bound


def _bind_error(error: OSError, host: str, port: int) -> InputError:
    received = f"{host}, port {port} ({os.strerror(error.errno or 0)})"
    if error.errno == errno.EADDRINUSE:
        cure = "Choose another one with --port, or stop the server that has it."
        return InputError(explain("The port is in use.", received, cure))
    cure = "Choose an address of this machine and a port from 1024 on."
    return InputError(explain("The address cannot be taken.", received, cure))


class Server(uvicorn.Server):  # type: ignore[misc]
    """Answers until told to stop; then it finishes what it has, and refuses the rest.

    Told before it is ready, it has nothing to finish.  A second signal ends it at once.
    announce: called when it is ready.
    """

    def __init__(
        self, app: Any, desk: Desk, *, drain_seconds: float, announce: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                backlog=MOST_AT_A_TIME,
                lifespan="on",
                access_log=False,  # queries may hold secrets; the watcher logs requests
                log_config=None,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=FAREWELL,
            )
        )
        self._desk = desk
        self._drain_seconds = drain_seconds
        self._announce = announce
        self._draining: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._was_told = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._warming = asyncio.create_task(self._warm_up())
        await asyncio.wait([self._warming])
        if self._warming.cancelled():
            self.should_exit = True
            return
        self._warming.result()  # raises what it did
        await super().startup(sockets)
        if self.started and not self._was_told:
            self._announce()

    async def _warm_up(self) -> None:
        say("warming up")
        await self._desk.warm_up()
        await self.config.app.state.rehearse()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal, between two steps of the main thread."""
        if self._was_told or self._loop is None:
            os._exit(128 + sig)
        self._was_told = True
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._warming is not None and not self._warming.done():
            say("stopping")
            self._warming.cancel()
        else:
            self._drain()

    def _drain(self) -> None:
        waiting = len(self._desk.tickets)
        say("stopping", requests=waiting, at_most_seconds=self._drain_seconds if waiting else 0)

        async def drain() -> None:
            await self._desk.drain(self._drain_seconds)
            self.should_exit = True

        self._draining = asyncio.create_task(drain())
