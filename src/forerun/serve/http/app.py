"""The ASGI application: all routes, and the checks that every request passes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.keys import Key, Keys
from forerun.serve.http.answering import Answering
from forerun.serve.http.guard import Guard
from forerun.serve.http.models import Models
from forerun.serve.http.requests import Bodies, Bounds
from forerun.serve.http.responses import error_response, json_response
from forerun.serve.http.worker import Worker, owner_of
from forerun.serve.openai.objects import parse_object
from forerun.serve.openai.routes import Query
from forerun.serve.watching.logs import ResponseLog
from forerun.serve.watching.roles import Watcher

OPEN = ("/health", "/ready", "/")
"""Paths that need no key; the files of the demo page need none either. None of them tells anything
about requests."""


def make_app(
    models: Models,
    *,
    keys: Keys | None = None,
    bounds: Bounds | None = None,
    watcher: Watcher | None = None,
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Starlette:
    """Make the application that serves these models, and closes them at the end.

    Its routes are those of the default model, which must be loaded.
    keys: who may use the server; None for everybody.
    watcher: counts for all models; by default, the default model's watcher.
    cors_origins: origins whose pages may call from a browser; by default only the server's own.
    hosts: names under which the server may be called; none means any.
    """
    served = models.default.served
    assert served is not None
    bounds, bodies = bounds or Bounds(), Bodies(bounds or Bounds())
    watcher = watcher or models.default.watcher
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
        ids=models,
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
        models.watch()
        try:
            yield
        finally:
            await models.close()

    answering = [
        Path(
            path,
            Answering(path, models, bounds, bodies, reading, wording, scoring),
            methods=["POST"],
        )
        for path in served.routes
    ]
    query_paths = [
        Path(
            path,
            partial(_tell, query)
            if query.method == "GET"
            else partial(_ask, path, models, bounds, bodies, asking),
            methods=[query.method],
        )
        for path, query in served.queries.items()
    ]
    app = Starlette(
        routes=[*answering, *query_paths, *_about(models, watcher), *pages],
        middleware=[Middleware(ResponseLog), *([cors] if cors_origins else []), guard],
        exception_handlers={HTTPException: _unknown},
        lifespan=lifespan,
    )
    app.state.models = models
    app.router.redirect_slashes = False  # to an address made from the Host header
    return app


async def _tell(query: Query, request: Request) -> Response:
    return json_response(query.answer({}))


async def _ask(
    path: str, models: Models, bounds: Bounds, bodies: Bodies, asking: Worker, request: Request
) -> Response:
    """Answer a query that has a body. It counts as a request of its key."""
    key: Key = request.scope["state"]["key"]
    owner, most = owner_of(request.scope), bounds.max_values
    with key.quota.entering():
        encoded = await bodies.read(request, owner)
        body = await asking.run(lambda: parse_object(encoded, most), owner)
        async with models.using(body.get("model")) as served:
            response = await asking.run(partial(_answer, served.queries[path], body), owner)
    key.quota.leave()
    return response


def _answer(query: Query, body: Mapping[str, Any]) -> Response:
    return json_response(query.answer(body))


def _about(models: Models, watcher: Watcher) -> list[BaseRoute]:
    """The routes about the state of the server and its models."""

    async def health(request: Request) -> Response:
        """Whether the process is alive."""
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Whether the server can answer requests now."""
        if models.is_ready:
            return json_response({"status": "ready"})
        status = "draining" if models.is_draining else "restarting"
        return json_response({"status": status}, 503)

    async def metrics(request: Request) -> Response:
        """The metrics in the format of Prometheus."""
        prefix = request.query_params.get("prefix", "")
        if not re.fullmatch("[a-z_]{0,32}", prefix):
            message = "'prefix' must be at most 32 small letters, such as vllm."
            raise ApiError(message, param="prefix", code="invalid_value")
        body, kind = watcher.exposition(request.headers.get("accept", ""), prefix)
        return Response(body, headers={"content-type": kind})

    async def stats(request: Request) -> Response:
        """The rates of the last seconds: tokens per second, acceptance and so on."""
        return json_response(models.summary())

    async def list_models(request: Request) -> Response:
        """All models, as a list."""
        return json_response({"object": "list", "data": models.cards()})

    async def one_model(request: Request) -> Response:
        """The description of one model, under any of its names."""
        return json_response(models.card(request.path_params["name"]))

    return [
        Path("/health", health),
        Path("/ready", ready),
        Path("/metrics", metrics),
        Path("/v1/stats", stats),
        Path("/v1/models", list_models),
        Path("/v1/models/{name:path}", one_model),
    ]


ABSENT = {
    "embeddings": "embeddings",
    "audio": "speech and transcriptions",
    "images": "images",
    "videos": "videos",
    "moderations": "moderations",
    "realtime": "realtime sessions",
    "rerank": "ranks of documents",
    "score": "scores of pairs",
    "files": "files; `forerun batch` answers a file of requests",
    "uploads": "uploads",
    "batches": "batches; `forerun batch` answers a file of requests",
    "fine_tuning": "fine-tuning",
    "assistants": "assistants",
    "threads": "threads",
    "conversations": "conversations: answers are not kept",
    "vector_stores": "vector stores",
    "containers": "containers",
    "evals": "evaluations",
    "complete": "older completions; use /v1/messages",
}
"""Routes that other servers have, with or without `/v1/`, and what each of them does."""


def _absent(path: str) -> str | None:
    """A description of what a path does on other servers, for a helpful 404; None for unknown
    paths."""
    first = path.strip("/").removeprefix("v1/").partition("/")[0]
    return ABSENT.get(first)


async def _unknown(request: Request, error: Exception) -> Response:
    """The response for an unknown path or method, in the format of all other errors."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not possible here. Use {allowed}."
        code = "method_not_allowed"
    elif (absent := _absent(request.url.path)) is not None:
        message = f"This server has no {absent}: its models read and write text. "
        message += "GET /openapi.json lists what there is."
        code = "not_found"
    else:
        message = "There is nothing at this address. GET /openapi.json lists what there is."
        code = "not_found"
    response = error_response(ApiError(message, status=error.status_code, code=code))
    response.headers.update(error.headers or {})
    return response


KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
}
"""Headers that allow the page to run its own scripts and styles and to talk to its own server, and
nothing else."""


def page_routes() -> list[Path]:
    """The routes of the demo page: index.html at /, its other files at /page/NAME."""
    folder = files("forerun.serve.http") / "page"
    found = sorted(folder.iterdir(), key=lambda file: file.name) if folder.is_dir() else []
    return [
        _page_file("/" if file.name == "index.html" else f"/page/{file.name}", file, kind)
        for file in found
        if (kind := KINDS.get(PurePath(file.name).suffix)) is not None
    ]


def _page_file(path: str, file: Traversable, kind: str) -> Path:
    body = file.read_bytes()

    def send(request: Request) -> Response:
        return Response(body, headers={"content-type": kind, **PAGE_HEADERS})

    return Path(path, send, methods=["GET"])
