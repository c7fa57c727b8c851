"""Middleware for all requests: gives ids, checks keys and hosts, and hides internal errors."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.base.errors import LOG
from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.keys import ANYBODY, Keys
from forerun.serve.http.responses import error_response
from forerun.serve.watching.roles import Watcher

ABSOLUTE = re.compile(r"https?://(?P<host>[^/]*)", re.IGNORECASE)
SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Guard:
    """The middleware that every request passes.

    is_open: whether a path may be requested without a key.
    hosts: names under which the server may be called, in lower case; none means any.
    ids: those of the running requests; a client's own id is used unless it is taken.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys | None,
        is_open: Callable[[str], bool],
        hosts: Collection[str],
        ids: Collection[str],
        watcher: Watcher,
    ) -> None:
        self._app = app
        self._keys = keys
        self._is_open = is_open
        self._hosts = hosts
        self._ids = ids
        self._watcher = watcher
        self._in_use: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = _in_origin_form(scope)
        headers = Headers(scope=scope)
        request_id = self._request_id(headers.get("x-request-id", ""))
        state: dict[str, Any] = scope.setdefault("state", {})
        state |= {"request_id": request_id, "key": ANYBODY, "arrival": time.perf_counter()}
        self._in_use.add(request_id)
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                added = MutableHeaders(scope=message)
                added["x-request-id"] = request_id
                added["x-content-type-options"] = "nosniff"
                added.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._check_host(headers.get("host", "") if host is None else host)
            if self._keys is not None and not self._is_open(scope["path"]):
                sent = headers.get("authorization"), headers.get("x-api-key")
                state["key"] = self._keys.find(*sent)
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            return
        except Exception as error:
            refusal = self._refusal(error, request_id)
            if not state.get("is_received"):
                reason, owner = refusal.code or str(refusal.status), state["key"].label
                self._watcher.refused(reason, request_id, owner)
            if not has_begun:
                await error_response(refusal)(scope, receive, send_on)
        finally:
            self._in_use.discard(request_id)

    def _request_id(self, theirs: str) -> str:
        is_free = theirs not in self._ids and theirs not in self._in_use
        if is_free and SANE_ID.fullmatch(theirs):
            return theirs
        return secrets.token_hex(12)

    def _check_host(self, host: str) -> None:
        """Refuse a host name that is not the server's own. Otherwise a web page could reach a
        server without keys through a name that resolves to this machine."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            name = ""
        if self._hosts and name not in self._hosts:
            message = (
                "This server does not answer to the name in the Host header. Use localhost or "
                "127.0.0.1, or start it with --allowed-host."
            )
            raise ApiError(message, status=421, code="unknown_host")

    def _refusal(self, error: Exception, request_id: str) -> ApiError:
        """The error to send for an exception. The details of a bug are only logged."""
        if isinstance(error, ApiError):
            return error
        LOG.error("Request %s met a bug.", request_id, exc_info=error)
        message = f"Something went wrong here; the request id is {request_id}."
        return ApiError(message, status=500, kind="server_error", code="internal_error")


def _in_origin_form(scope: Scope) -> str | None:
    """Cut a request target such as http://host/path (which servers must accept) to its path.
    Returns its host, which replaces the header's; None for an ordinary path."""
    parts = ABSOLUTE.match(scope["path"])
    if parts is None:
        return None
    scope["path"] = scope["path"][parts.end() :] or "/"
    scope["raw_path"] = scope["path"].encode()
    return parts["host"]
