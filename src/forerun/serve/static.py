"""The page's files, by names that are fixed here: no path of a client's reaches the disk."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = {
    "index.html": "text/html; charset=utf-8",
}
"""What `serve/page` holds, and what it is sent as; index.html at /, others at /page/NAME."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own scripts and styles and speaks to its own server, and that is all."""


def page_routes() -> list[Route]:
    """Routes to the files there are; read once."""
    folder = files("forerun.serve") / "page"
    present = [name for name in FILES if (folder / name).is_file()]
    return [
        _route("/" if name == "index.html" else f"/page/{name}", (folder / name).read_bytes(), kind)
        for name, kind in FILES.items()
        if name in present
    ]


def _route(path: str, body: bytes, kind: str) -> Route:
    headers = {
        "content-security-policy": POLICY,
        "cache-control": "no-cache",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
    }

    def send(request: Request) -> Response:
        return Response(body, media_type=kind, headers=headers)

    return Route(path, send, methods=["GET"])
