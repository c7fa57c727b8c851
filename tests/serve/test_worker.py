"""Requests that are costly to read: refused where that can be seen, given up where it cannot."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asking import BODY, ask, error_of
from serving import PlainReply, PlainRoute, call, run, serving
from talking import offer_of

from forerun.serve.admission.errors import ApiError
from forerun.serve.http import answering
from forerun.serve.http.requests import Bounds
from forerun.serve.http.worker import MOST_STUCK, Worker
from forerun.serve.openai.formats import compiled
from forerun.serve.openai.objects import parse_object
from forerun.serve.openai.options import check_length, tokens_of
from forerun.serve.openai.templates import chat_tokens


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9999991},
        {"type": "number", "multipleOf": 0.9999991},
        {"properties": {"a": {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}}},
    ],
)
def test_a_schema_that_takes_minutes_to_compile_is_refused(schema: Any) -> None:
    with pytest.raises(ApiError, match="too long to compile") as caught:
        compiled(schema, "here")
    assert (caught.value.status, caught.value.param) == (400, "here")


@pytest.mark.parametrize("value", [7, 0.01, 1_000_000, 25, 1e-5])
def test_usual_multiples_are_compiled(value: float) -> None:
    compiled({"type": "number", "multipleOf": value}, "here")


class Stuck(PlainRoute):
    """Reads a prompt "stuck" until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.threads: list[threading.Thread] = []

    def read(self, body: Any) -> Any:
        if body.get("prompt") == "stuck":
            self.threads.append(threading.current_thread())
            self.gate.wait(30)
        return super().read(body)


class Echo:
    path, method = "/echo", "GET"

    def answer(self, body: Any) -> dict[str, Any]:
        return {"fine": True}


def test_a_request_that_is_not_read_in_time_stops_nobody() -> None:
    async def main() -> None:
        route, options = Stuck(), {"bounds": Bounds(read_seconds=1.0)}
        async with serving(route=route, queries=[Echo()], app=options) as (app, _):
            path = app.router.routes[0].app
            try:
                given_up = await call(app, body={"prompt": "stuck"})
                path._reading._seconds = 60  # a slow machine may take its time
                assert (given_up.status, error_of(given_up)["code"]) == (503, "overloaded")
                assert int(given_up.headers["retry-after"]) >= 1
                assert (await call(app, "/echo", method="GET")).json() == {"fine": True}
                assert (await call(app, body=BODY)).status == 200
                assert route.threads[0].is_alive()
                assert route.threads[0].daemon  # so an exit does not wait for it
            finally:
                route.gate.set()

    run(main())


def test_threads_that_are_stuck_are_few() -> None:
    async def main() -> None:
        worker, gate = Worker("test", 0.01), threading.Event()
        codes = []
        try:
            for _ in range(MOST_STUCK + 3):
                with pytest.raises(ApiError) as caught:
                    await worker.run(gate.wait)
                codes.append(str(caught.value))
        finally:
            gate.set()
        assert sum("is busy with" in code for code in codes) == 2

    run(main())


def test_bodies_are_parsed_and_answers_worded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = {}

    def noted(name: str, work: Any) -> Any:
        def noting(*args: Any) -> Any:
            threads[name] = threading.current_thread().name
            return work(*args)

        return noting

    monkeypatch.setattr(answering, "parse_object", noted("parsed", parse_object))
    monkeypatch.setattr(PlainReply, "whole", noted("worded", PlainReply.whole))
    assert ask({"body": BODY}).status == 200
    assert threads == {"parsed": "forerun-reading", "worded": "forerun-wording"}


def test_log_probabilities_are_bounded_over_all_answers() -> None:
    bounds = Bounds(max_alternatives=40)
    most = {**BODY, "n": 2, "max_tokens": 10, "logprobs": 2}
    fits, exceeds = ask({"body": most}, {"body": {**most, "n": 3}}, app={"bounds": bounds})
    assert fits.status == 200
    assert (exceeds.status, error_of(exceeds)["param"]) == (400, "logprobs")


def test_a_text_that_cannot_fit_is_not_tokenised() -> None:
    offer = offer_of()
    assert offer.max_context is not None
    text = "a" * (offer.max_context * offer.longest_token)
    check_length(offer, text, "prompt")
    for read in (
        lambda: tokens_of(offer, text + "a", "prompt"),
        lambda: chat_tokens(offer, [{"role": "user", "content": text, "name": None}]),
    ):
        with pytest.raises(ApiError, match="characters long") as caught:
            read()
        assert caught.value.code == "context_length_exceeded"
