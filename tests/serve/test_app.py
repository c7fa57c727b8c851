"""The application: what gets in, what comes out, and what clients do in between."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from asking import BODY, KEYS, LONG, ask, bearer, error_of
from serving import Answered, Babbler, PlainRoute, call, gated, run, serving, until

from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.http.requests import Bounds
from forerun.serve.watching.roles import Watcher


def test_streamed_and_whole_say_the_same() -> None:
    whole, streamed = ask({"body": BODY}, {"body": {**BODY, "stream": True}})
    assert (whole.status, streamed.status) == (200, 200)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text == whole.json()["texts"][0]
    assert streamed.events[-1] == "[DONE]"
    assert streamed.events[-2]["texts"] == whole.json()["texts"]
    assert streamed.events[0]["id"] == streamed.headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "it is no object"),
        (b'"text"', "it is no object"),
        (b"null", "it is no object"),
        (b'{"prompt": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "a", "prompt": "b"}', "a key occurs twice"),
        (b'{"prompt": "\xff"}', "it is no UTF-8"),
        (b'{"prompt": "a\\ud800b"}', "a text in it has a lone surrogate, half of a character"),
        (b"[" * 10_000, "nested too deeply"),
        (b'{"a":' * 10_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "number in it is too long"),
        (json.dumps(BODY).encode("utf-16"), "it is no UTF-8"),
    ],
)
def test_bodies_that_are_no_json_objects(body: bytes, reason: str) -> None:
    response = ask({"body": body})
    assert response.status == 400
    assert error_of(response)["code"] == "invalid_json"
    assert reason in error_of(response)["message"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/json; charset=latin-1"])
def test_other_content_types_are_refused(kind: str) -> None:
    response = ask({"body": BODY, "headers": {"content-type": kind}})
    assert (response.status, error_of(response)["code"]) == (415, "unsupported_media_type")


def test_a_content_type_may_name_its_charset() -> None:
    headers = {"content-type": 'Application/JSON; charset="UTF-8"'}
    assert ask({"body": BODY, "headers": headers}).status == 200


@pytest.mark.parametrize("headers", [{}, {"content-length": "4000"}], ids=["chunked", "declared"])
def test_large_bodies_are_not_kept(headers: dict[str, str]) -> None:
    parts = [b'{"prompt": "', *[b"x" * 100] * 40, b'"}']
    bounds = Bounds(max_body_bytes=1000)
    response = ask({"body": parts, "headers": headers}, app={"bounds": bounds})
    assert (response.status, error_of(response)["code"]) == (413, "body_too_large")


def test_a_body_that_never_ends_is_given_up() -> None:
    async def main() -> Answered:
        async with serving(app={"bounds": Bounds(body_seconds=0.05)}) as (app, _):
            answered = Answered()

            async def send(message: Any) -> None:
                answered.status = answered.status or message["status"]

            async def receive() -> Any:
                await asyncio.sleep(0.01)
                return {"type": "http.request", "body": b" ", "more_body": True}

            headers = [(b"content-type", b"application/json")]
            scope = {"type": "http", "method": "POST", "path": PlainRoute.path, "headers": headers}
            await app(scope, receive, send)
            return answered

    assert run(main()).status == 408


def test_unknown_paths_and_methods_have_the_same_shape() -> None:
    path, method, file = ask(
        {"path": "/v1/nothing", "body": BODY},
        {"method": "GET"},
        {"path": "/page/../../keys.py", "method": "GET"},
    )
    assert (path.status, error_of(path)["code"]) == (404, "not_found")
    assert "/openapi.json" in error_of(path)["message"]
    assert (method.status, error_of(method)["code"]) == (405, "method_not_allowed")
    assert "Use POST" in error_of(method)["message"]
    assert method.headers["allow"] == "POST"
    assert file.status == 404


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/embeddings", "no embeddings"),
        ("/embeddings", "no embeddings"),
        ("/v1/audio/transcriptions", "no speech and transcriptions"),
        ("/v1/images/generations", "no images"),
        ("/v1/moderations", "no moderations"),
        ("/v1/files", "no files; `forerun batch`"),
        ("/v1/vector_stores/vs_1/search", "no vector stores"),
        ("/v1/nothing", "There is nothing at this address."),
        ("/v1/embeddingsX", "There is nothing at this address."),
    ],
)
def test_routes_that_other_servers_have_are_said_to_be_missing(path: str, told: str) -> None:
    response = ask({"path": path, "body": {"input": "a"}})
    assert (response.status, error_of(response)["code"]) == (404, "not_found")
    assert told in error_of(response)["message"]


def test_a_fields_error_is_the_routes_own() -> None:
    response = ask({"body": {"prompt": 7}})
    assert response.status == 400
    assert error_of(response)["param"] == "prompt"


def test_request_ids_are_echoed_if_sane() -> None:
    sane, strange, long, none = ask(
        *(
            {"body": BODY, "headers": {"x-request-id": value}}
            for value in ("trace-1.a_b", "a b", "x" * 65)
        ),
        {"body": BODY},
    )
    assert sane.headers["x-request-id"] == sane.json()["id"] == "trace-1.a_b"
    for response in (strange, long, none):
        made = response.headers["x-request-id"]
        assert made == response.json()["id"]
        assert made.isalnum()
        assert len(made) == 24


def test_an_id_in_use_is_not_used_twice() -> None:
    async def main() -> Any:
        async with serving() as (app, _):
            calls = [call(app, body=BODY, headers={"x-request-id": "same"}) for _ in range(3)]
            return [response.headers["x-request-id"] for response in await asyncio.gather(*calls)]

    ids = run(main())
    assert len(set(ids)) == 3
    assert "same" in ids


def test_nothing_of_our_insides_gets_out() -> None:
    class Buggy(PlainRoute):
        def read(self, body: Any) -> Ask:
            raise KeyError("/etc/secret")

    async def main() -> Answered:
        async with serving(route=Buggy()) as (app, _):
            return await call(app, body=BODY)

    response = run(main())
    assert response.status == 500
    assert b"secret" not in response.body
    assert b"KeyError" not in response.body
    assert response.headers["x-request-id"] in error_of(response)["message"]


def test_a_failure_in_mid_stream_is_an_event() -> None:
    class Sick(Babbler):
        def _law(self, ids: Any) -> Any:
            return super()._law(ids) * (float("nan") if len(ids) > 40 else 1.0)

    body = {**BODY, "max_tokens": 100}
    streamed, whole = ask({"body": {**body, "stream": True}}, {"body": body}, target=Sick())
    assert streamed.status == 200
    assert streamed.is_complete
    assert streamed.events[-1] == "[DONE]"
    assert streamed.events[-2]["error"]["code"] == "generation_failed"
    assert whole.status == 500
    assert "NaN" not in error_of(whole)["message"]


@pytest.mark.parametrize(("stream", "leave_after"), [(True, 0), (True, 3), (False, 0)])
def test_a_client_that_goes_away_frees_its_row(stream: bool, leave_after: int) -> None:
    reasons: list[str] = []

    class Ends(Watcher):
        def ended(self, request_id: str, answers: Any) -> None:
            reasons.extend(answer.finish_reason for answer in answers)

    async def main() -> None:
        async with serving(max_batch=1, watcher=Ends()) as (app, desk):
            body = {**LONG, "stream": stream, "n": 2}
            answered = await call(app, body=body, leave_after=leave_after)
            assert not answered.is_complete
            # a client may be gone before its request has entered
            await until(lambda: len(reasons) == 2 and not desk.tickets)
            await until(lambda: desk.num_open == desk.num_running == 0)
            assert reasons == ["aborted", "aborted"]
            assert (await call(app, body=BODY)).status == 200

    run(main())


def test_a_reader_that_takes_nothing_in_is_dropped() -> None:
    async def stuck(answered: Answered) -> None:
        if len(answered.chunks) == 3:
            await asyncio.sleep(30)

    async def main() -> None:
        async with serving(app={"bounds": Bounds(reader_seconds=0.05)}) as (app, desk):
            answered = await call(app, body={**LONG, "stream": True}, before_send=stuck)
            assert len(answered.chunks) == 3
            assert not answered.is_complete
            await until(lambda: desk.num_open == desk.num_running == 0)

    run(main())


def test_a_full_queue_is_429_with_retry_after() -> None:
    async def main() -> None:
        target, gate = gated()
        async with serving(target, max_batch=1, max_queue=1) as (app, desk):
            first = [asyncio.create_task(call(app, body=BODY)) for _ in range(2)]
            await until(lambda: desk.num_open == 2)
            response = await call(app, body=BODY)
            assert (response.status, error_of(response)["code"]) == (429, "queue_full")
            assert error_of(response)["type"] == "rate_limit_error"
            seconds = int(response.headers["retry-after"])
            assert seconds >= 1
            assert f"in {seconds} s" in error_of(response)["message"]
            gate.set()
            await asyncio.gather(*first)

    run(main())


def test_health_and_readiness() -> None:
    async def main() -> None:
        async with serving() as (app, desk):
            for path, status in (("/health", "ok"), ("/ready", "ready")):
                response = await call(app, path, method="GET")
                assert (response.status, response.json()) == (200, {"status": status})
            await desk.drain(0)
            assert (await call(app, "/health", method="GET")).status == 200
            response = await call(app, "/ready", method="GET")
            assert (response.status, response.json()) == (503, {"status": "draining"})
            response = await call(app, body=BODY)
            assert (response.status, error_of(response)["code"]) == (503, "shutting_down")
            assert int(response.headers["retry-after"]) >= 1

    run(main())


def test_refusals_are_counted_and_requests_are_watched() -> None:
    told: list[tuple[Any, ...]] = []

    class Notes(Watcher):
        def received(
            self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
        ) -> None:
            told.append(("received", request_id, route, owner_label))

        def started(self, request_id: str) -> None:
            told.append(("started", request_id))

        def ended(self, request_id: str, answers: Any) -> None:
            told.append(("ended", request_id, len(answers)))

        def failed(self, request_id: str, reason: str) -> None:
            told.append(("failed", request_id, reason))

        def refused(self, reason: str, request_id: str | None = None, owner: str = "") -> None:
            told.append(("refused", reason, request_id))

    good = {"body": {**BODY, "n": 2}, "headers": {**bearer("sk-alice-123"), "x-request-id": "r1"}}
    bad = {"body": b"{", "headers": {**bearer("sk-alice-123"), "x-request-id": "r2"}}
    unknown = {"body": BODY, "headers": {"x-request-id": "r3"}}
    ask(good, bad, unknown, app={"keys": KEYS}, watcher=Notes())
    assert told == [
        ("received", "r1", "/v1/plain", "alice"),
        ("started", "r1"),
        ("ended", "r1", 2),
        ("refused", "invalid_json", "r2"),
        ("refused", "invalid_api_key", "r3"),
    ]


def test_the_time_to_the_first_token_counts_from_the_arrival() -> None:
    """The time that its body took included."""
    told: list[float] = []

    class Notes(Watcher):
        def received(
            self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
        ) -> None:
            told.append(seconds)

    class Slow(PlainRoute):
        def read(self, body: Any) -> Ask:
            time.sleep(0.05)
            return super().read(body)

    async def main() -> None:
        async with serving(route=Slow(), watcher=Notes()) as (app, _):
            await call(app, body=BODY)

    run(main())
    assert told[0] >= 0.05


def test_a_query_is_answered_without_an_engine() -> None:
    class Double:
        path, method = "/double", "POST"

        def answer(self, body: Any) -> dict[str, Any]:
            if "word" not in body:
                raise ApiError("word is missing.", param="word")
            return {"answer": 2 * body["word"]}

    fine, missing = ask(
        {"path": "/double", "body": {"word": "ab"}},
        {"path": "/double", "body": {}},
        queries=[Double()],
    )
    assert fine.json() == {"answer": "abab"}
    assert (missing.status, error_of(missing)["param"]) == (400, "word")
