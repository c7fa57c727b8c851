"""The ASGI application: routes over a desk, guarded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask, Route
from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.keys import Key, Keys
from forerun.serve.http.answering import Answering
from forerun.serve.http.bounds import Bounds
from forerun.serve.http.guard import Guard
from forerun.serve.http.requests import Bodies, parse_object
from forerun.serve.http.responses import error_response, json_response
from forerun.serve.http.static import page_routes
from forerun.serve.http.turns import owner_of
from forerun.serve.http.warm_up import rehearse
from forerun.serve.http.worker import Worker
from forerun.serve.openai.query import Query
from forerun.serve.watching.logs import ResponseLog
from forerun.serve.watching.roles import Watcher

OPEN = ("/health", "/ready", "/")
"""Paths that need no key; so do the page's files.  None of them tells anything of a request."""


def make_app(
    desk: Desk,
    routes: Sequence[Route],
    queries: Sequence[Query] = (),
    *,
    keys: Keys | None = None,
    bounds: Bounds | None = None,
    fingerprint: Callable[[Ask], str] = lambda ask: "",
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Starlette:
    """An application that answers by the desk, and closes it in the end.

    keys: who may ask; None for everybody.  cors_origins: whose pages may ask from a browser; by
    default only the server's own.  hosts: names the server answers to; without any, to all.
    """
    bounds = bounds or Bounds()
    watcher = desk.watcher
    bodies = Bodies(bounds)
    reading = Worker("forerun-reading", bounds.read_seconds)
    wording = Worker("forerun-wording", bounds.word_seconds)
    scoring = Worker("forerun-scoring", bounds.score_seconds)
    asking = Worker("forerun-asking", bounds.read_seconds)
    pages = page_routes()
    guard = Middleware(
        Guard,
        keys=keys,
        is_open=frozenset((*OPEN, *(page.path for page in pages))).__contains__,
        hosts=frozenset(host.lower() for host in hosts),
        ids=desk.tickets,
        watcher=watcher,
    )
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(cors_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # clients send a dozen of their own, and none of them does harm
        expose_headers=["x-request-id", "retry-after"],
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watcher.watch(desk)
        try:
            yield
        finally:
            await desk.close()

    answering = [
        Path(
            route.path,
            Answering(route, desk, bounds, bodies, fingerprint, reading, wording, scoring),
            methods=["POST"],
        )
        for route in routes
    ]
    query_paths = [
        Path(query.path, partial(_ask, query, bounds, bodies, asking), methods=[query.method])
        for query in queries
    ]
    app = Starlette(
        routes=[*answering, *query_paths, *_about(desk, watcher), *pages],
        middleware=[Middleware(ResponseLog), *([cors] if cors_origins else []), guard],
        exception_handlers={HTTPException: _unknown},
        lifespan=lifespan,
    )
    app.state.rehearse = partial(rehearse, desk, routes, fingerprint)  # before it is ready
    app.router.redirect_slashes = False  # to an address made from the Host header
    return app


async def _ask(
    query: Query, bounds: Bounds, bodies: Bodies, asking: Worker, request: Request
) -> Response:
    """The answer to a query; one with a body counts as a request of its key."""
    key: Key = request.scope["state"]["key"]
    owner, most = owner_of(request.scope), bounds.max_values
    if query.method == "GET":
        return await asking.run(partial(_answer, query, {}, request), owner)
    with key.quota.entering():
        body = await bodies.read(request, owner)
        response = await asking.run(
            lambda: _answer(query, parse_object(body, most), request), owner
        )
    key.quota.leave()
    return response


def _answer(query: Query, body: Mapping[str, Any], request: Request) -> Response:
    return json_response(query.answer(body, **request.path_params))


def _about(desk: Desk, watcher: Watcher) -> list[BaseRoute]:
    """How the server is."""

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        if desk.is_ready:
            return json_response({"status": "ready"})
        status = "draining" if desk.is_draining else "restarting"
        return json_response({"status": status}, 503)

    async def metrics(request: Request) -> Response:
        body, kind = watcher.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def stats(request: Request) -> Response:
        return json_response(watcher.summary())

    return [
        Path("/health", health),
        Path("/ready", ready),
        Path("/metrics", metrics),
        Path("/v1/stats", stats),
    ]


async def _unknown(request: Request, error: Exception) -> Response:
    """A path or a method that there is not, in the shape of every other error."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not possible here. Use {allowed}."
        code = "method_not_allowed"
    elif request.url.path == "/v1/embeddings":
        message = "This server has no embeddings: it serves one model, which writes text."
        code = "not_found"
    else:
        message = "There is nothing at this address. GET /openapi.json lists what there is."
        code = "not_found"
    response = error_response(ApiError(message, status=error.status_code, code=code))
    response.headers.update(error.headers or {})
    return response
