"""A server is ready when its first request need not load anything."""

from __future__ import annotations

import logging
import signal
import threading
import time
from copy import copy
from typing import Any

import pytest
from serving import Babbler, PlainRoute, run, tiny_llama

from forerun.loading.light_tokenizer import LightTokenizer, of
from forerun.serve.admission.admission import Desk
from forerun.serve.http import lifecycle
from forerun.serve.http.assembly import make_server
from forerun.serve.http.lifecycle import Server, bind
from forerun.serve.http.models import Served
from forerun.serve.http.requests import Bounds
from forerun.serve.watching.logs import LOG

pytestmark = pytest.mark.serve


def told_when_ready(target: Any) -> dict[str, Any]:
    """What a server says of itself at the moment it is ready; it ends there."""
    app, desk = make_server(target, {"none": None})
    told: dict[str, Any] = {}

    def announce() -> None:
        told.update(desk.watcher.summary(), num_open=desk.num_open)
        server.should_exit = True

    server = Server(app, drain_seconds=1, announce=announce)
    with bind("127.0.0.1", 0, Bounds()) as bound:
        server.run(sockets=[bound])
    return told


def test_a_server_starts_without_the_whole_tokenizer() -> None:
    """Which would import transformers, and that takes most of a start."""
    target = copy(tiny_llama())
    whole, loads = target.tokenizer, []

    def load() -> Any:
        loads.append("whole")
        return whole

    target.tokenizer = LightTokenizer(of(whole), load)
    told = told_when_ready(target)
    assert loads == []
    assert told["num_open"] == 0


def test_a_server_says_that_it_warms_up_and_that_it_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both may take half a minute."""
    app, _ = make_server(tiny_llama(), {"none": None})
    server = Server(app, drain_seconds=7, announce=lambda: server.handle_exit(signal.SIGINT, None))
    with caplog.at_level(logging.INFO), bind("127.0.0.1", 0, Bounds()) as bound:
        server.run(sockets=[bound])
    told = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    assert told[0] == "warming up"
    assert "stopping" in told


def test_a_server_that_is_stopped_while_it_warms_up_never_announces_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_warming, gate = threading.Event(), threading.Event()

    def wait(ids: object) -> None:
        is_warming.set()
        gate.wait(60)

    app, _ = make_server(Babbler(wait), {"none": None})
    announced: list[str] = []
    server = Server(app, drain_seconds=30, announce=lambda: announced.append("ready"))

    def stop() -> None:
        is_warming.wait(30)
        time.sleep(0.3)
        server.handle_exit(signal.SIGINT, None)

    monkeypatch.setattr(lifecycle, "STILL_WARMING", 0.05)
    threading.Thread(target=stop, daemon=True).start()
    began = time.monotonic()
    with caplog.at_level(logging.INFO), bind("127.0.0.1", 0, Bounds()) as bound:
        server.run(sockets=[bound])
    gate.set()
    assert time.monotonic() - began < 20  # and not until the pass returns
    assert announced == []
    told = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    assert [told[0], told[-1], {*told[1:-1]}] == ["warming up", "stopping", {"still warming up"}]


def test_a_server_without_a_chat_template_becomes_ready() -> None:
    assert told_when_ready(Babbler())["num_open"] == 0


def test_a_request_is_read_answered_and_worded_on_every_route() -> None:
    steps: list[str] = []

    class Noting(PlainRoute):
        path = "/v1/completions"

        def read(self, body: Any) -> Any:
            steps.append("read")
            return super().read({"prompt": "ab", "max_tokens": 1})

        def reply(self, *about: Any) -> Any:
            reply = super().reply(*about)
            whole = reply.whole
            reply.whole = lambda answers: steps.append("worded") or whole(answers)  # type: ignore
            return reply

    async def main() -> None:
        async with Desk(Babbler(), {"none": None}) as desk:
            await Served(desk, {Noting.path: Noting()}).warm_up()

    run(main())
    assert steps == ["read", "worded"]
