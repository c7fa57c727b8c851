"""What every request passes first: an id, a key, and no way for our insides to get out."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import LOG
from forerun.serve.errors import ApiError
from forerun.serve.keys import Keys
from forerun.serve.responses import error_response
from forerun.serve.watcher import Watcher

SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Guard:
    """Middleware.

    is_open: whether a path may be asked for without a key.
    ids: of the requests at the desk; a client's own id is taken unless it is in use.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys | None,
        is_open: Callable[[str], bool],
        ids: Collection[str],
        watcher: Watcher,
    ) -> None:
        self._app = app
        self._keys = keys
        self._is_open = is_open
        self._ids = ids
        self._watcher = watcher
        self._in_use: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = self._request_id(headers.get("x-request-id", ""))
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
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
            if self._keys is not None and not self._is_open(scope["path"]):
                state["key"] = self._keys.find(headers.get("authorization"))
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            return
        except Exception as error:
            refusal = self._refusal(error, request_id)
            if not has_begun:
                await error_response(refusal)(scope, receive, send_on)
        finally:
            self._in_use.discard(request_id)

    def _request_id(self, theirs: str) -> str:
        is_free = theirs not in self._ids and theirs not in self._in_use
        if is_free and SANE_ID.fullmatch(theirs):
            return theirs
        return secrets.token_hex(12)

    def _refusal(self, error: Exception, request_id: str) -> ApiError:
        """What the client is told of an error; a bug is told to the log alone."""
        if isinstance(error, ApiError):
            self._watcher.refused(error.code or str(error.status))
            return error
        LOG.error("Request %s met a bug.", request_id, exc_info=error)
        self._watcher.refused("internal_error")
        message = f"Something went wrong here; the request id is {request_id}."
        return ApiError(message, status=500, kind="server_error", code="internal_error")
