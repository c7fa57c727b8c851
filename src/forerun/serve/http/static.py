"""The page's files, read once by the names they have: no path of a client's reaches the disk."""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
}
"""The page runs its own scripts and styles and speaks to its own server, and that is all."""


def page_routes() -> list[Route]:
    """index.html at /, the others at /page/NAME."""
    folder = files("forerun.serve.http") / "page"
    return [
        _route("/" if file.name == "index.html" else f"/page/{file.name}", file.read_bytes(), kind)
        for file in (sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else [])
        if (kind := KINDS.get(PurePath(file.name).suffix)) is not None
    ]


def _route(path: str, body: bytes, kind: str) -> Route:
    def send(request: Request) -> Response:
        return Response(body, headers={"content-type": kind, **HEADERS})

    return Route(path, send, methods=["GET"])
