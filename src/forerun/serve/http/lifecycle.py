"""The life of a server process: binds its socket, warms up, serves, drains and ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from forerun.base import clock
from forerun.base.errors import InputError, explain
from forerun.serve.http.connections import MOST_AT_A_TIME, Protocol
from forerun.serve.http.models import Models
from forerun.serve.http.requests import Bounds
from forerun.serve.http.tls import check_certificate, load_certificate
from forerun.serve.watching.logs import say

FAREWELL = 5
"""Seconds that the last responses have to be sent after the desk is empty."""
STILL_WARMING = 10.0
"""Seconds between two log lines about a long warm-up."""


def bind(host: str, port: int, bounds: Bounds) -> socket.socket:
    """Bind a socket to an address without listening yet; port 0 takes any free one."""
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


def bind_path(path: str) -> socket.socket:
    """A socket at a path of the file system; a socket file that a dead server left there is
    replaced.

    Unlike one at a port it listens at once: clients that connect early wait until the server is
    ready, and a second server notices that the path is taken.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path:  # which would be any name that is free
            raise OSError(errno.EINVAL, "")
        if Path(path).is_socket():
            if bound.connect_ex(path) == 0:
                raise OSError(errno.EADDRINUSE, "a server answers there")
            os.unlink(path)
            bound.close()
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(path)
        bound.listen(1)
    except OSError as error:
        bound.close()
        received = f"{path} ({os.strerror(error.errno or 0) if error.errno else error})"
        cure = "Choose a path of at most 100 characters in a folder that this process may write to."
        if error.errno == errno.EADDRINUSE:
            cure = "Choose another path, or stop what has this one."
        raise InputError(explain("The socket cannot be made.", received, cure)) from error
    return bound


@contextmanager
def at_path(path: str) -> Iterator[socket.socket]:
    """A socket at a path, for the duration of the block. Its file is then removed, unless another
    server has replaced it."""
    with bind_path(path) as bound:
        made = os.lstat(path)
        try:
            yield bound
        finally:
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), made):
                    os.unlink(path)


@dataclass(frozen=True)
class Renewal:
    """Something that SIGHUP reads again: keys, a certificate, a log file.

    read: reads it. If that raises, the old contents stay in use.
    """

    what: str
    read: Callable[[], None]


class Renewals:
    """Everything that SIGHUP reads again; if there is nothing, the signal keeps its usual effect.

    A signal that arrives while the first model is loading is remembered until the server runs.
    """

    def __init__(self, parts: Iterable[Renewal] = ()) -> None:
        self._parts = list(parts)
        self._is_due = False

    def remember(self) -> None:
        """From now on, remember a SIGHUP instead of letting it end the process."""
        signal.signal(signal.SIGHUP, self._note)

    def _note(self, sig: int, frame: FrameType | None) -> None:
        self._is_due = True

    def add(self, part: Renewal) -> None:
        """Read something again at each signal from now on."""
        self._parts.append(part)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, obey a SIGHUP at once."""
        if self._parts and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, self.read)
        if self._is_due:
            self.read()

    def read(self) -> None:
        """Read everything again. A part whose file is bad stays as it was."""
        for part in self._parts:
            try:
                part.read()
            except Exception as error:
                known = isinstance(error, InputError)
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                say("not renewed", logging.WARNING, what=part.what, reason=reason)
            else:
                say("renewed", what=part.what)


class Server(uvicorn.Server):  # type: ignore[misc]
    """A server that, when told to stop, finishes its requests and refuses new ones.

    If it is stopped before it is ready, it ends at once; a second signal also ends it at once.
    announce: called when it is ready.
    tls: the files of a certificate and its key.
    """

    def __init__(
        self,
        app: Any,
        *,
        drain_seconds: float,
        announce: Callable[[], None],
        tls: tuple[str, str] | None = None,
        renewals: Renewals | None = None,
    ) -> None:
        certificate, key = tls or (None, None)
        super().__init__(
            uvicorn.Config(
                app,
                ssl_certfile=certificate,
                ssl_keyfile=key,
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
        self._models: Models = app.state.models
        self._renewals = renewals or Renewals()
        if tls is not None:
            self._renewals.add(Renewal("certificate", partial(self._renew_certificate, *tls)))
        self._drain_seconds = drain_seconds
        self._announce = announce
        self._draining: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._was_told = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Warm up, listen and announce. A server that was stopped during the warm-up does not
        listen."""
        self._loop = asyncio.get_running_loop()
        self._renewals.begin(self._loop)
        self._warming = asyncio.create_task(self._warm_up())
        began = clock.now()
        while not (await asyncio.wait([self._warming], timeout=STILL_WARMING))[0]:
            compiling = round(clock.compiled()) or None
            say("still warming up", seconds=round(clock.now() - began), compiling=compiling)
        if self._warming.cancelled():
            self.should_exit = True
            return
        self._warming.result()  # raises what it did
        await super().startup(sockets)
        if self.started and not self._was_told:
            self._announce()

    async def _warm_up(self) -> None:
        """Answer some requests of the server's own, so that no client waits for first-time work."""
        say("warming up")
        await self._models.warm_up()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler; Python calls it between two steps of the main thread."""
        if self._was_told or self._loop is None:
            os._exit(128 + sig)
        self._was_told = True
        self._loop.call_soon_threadsafe(self._stop)

    def _renew_certificate(self, certificate: str, key: str) -> None:
        check_certificate(certificate, key)
        load_certificate(self.config.ssl, certificate, key)

    def _stop(self) -> None:
        """Cancel the warm-up, or let running requests finish and then end."""
        if self._warming is not None and not self._warming.done():
            say("stopping")
            self._warming.cancel()
        else:
            self._drain()

    def _drain(self) -> None:
        """Let running requests finish, then end the server."""
        waiting = self._models.num_requests
        say("stopping", requests=waiting, at_most_seconds=self._drain_seconds if waiting else 0)

        async def drain() -> None:
            await self._models.drain(self._drain_seconds)
            self.should_exit = True

        self._draining = asyncio.create_task(drain())
