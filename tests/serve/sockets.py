"""A server at a socket, in a thread of its own, for clients that need an address."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from forerun.drafters import NGram
from forerun.serve.http.assembly import make_server
from forerun.serve.http.lifecycle import bind
from forerun.serve.http.requests import Bounds


@contextmanager
def server_at_a_socket(target: Any, **options: Any) -> Iterator[str]:
    """Yields the address, like http://127.0.0.1:40000."""
    bound = bind("127.0.0.1", 0, Bounds())
    app, _ = make_server(target, {"ngram": NGram(), "none": None}, **options)
    config = uvicorn.Config(app, lifespan="on", access_log=False, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        for _ in range(1000):
            if server.started:
                break
            time.sleep(0.02)
        assert server.started
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()
