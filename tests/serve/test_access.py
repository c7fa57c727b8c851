"""Who may ask: keys, their limits, and pages of other origins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asking import BODY, KEYS, ask, bearer, error_of
from serving import PlainRoute, call, gated, run, serving, until

from forerun.serve.admission.ask import Ask
from forerun.serve.admission.keys import Keys


def test_every_route_but_the_open_ones_wants_a_key() -> None:
    async def main() -> None:
        async with serving(app={"keys": KEYS}) as (app, _):
            paths = [(route.path, min(route.methods)) for route in app.router.routes]
            for path, method in [*paths, ("/v1/nothing", "GET"), ("/docs", "GET")]:
                for headers in ({}, bearer("sk-alice-12"), {"authorization": "Basic sk-alice-123"}):
                    response = await call(app, path, BODY, method=method, headers=headers)
                    is_open = path in ("/", "/health", "/ready") or path.startswith("/page/")
                    assert response.status == (200 if is_open else 401), path
                    if not is_open:
                        assert error_of(response)["code"] == "invalid_api_key"
                        assert response.headers["www-authenticate"] == "Bearer"
            assert (await call(app, body=BODY, headers=bearer("sk-alice-123"))).status == 200

    run(main())


def test_a_key_may_stand_in_a_header_of_its_own() -> None:
    """As clients of Anthropic's API send it; `Authorization` counts where both are sent."""
    named = [
        {"x-api-key": "sk-alice-123"},
        {"x-api-key": " sk-alice-123 "},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {"x-api-key": "sk-alice-123", **bearer("wrong")},
        {"x-api-key": "wrong", **bearer("sk-alice-123")},
    ]
    calls = [{"body": BODY, "headers": headers} for headers in named]
    statuses = [response.status for response in ask(*calls, app={"keys": KEYS})]
    assert statuses == [200, 200, 401, 401, 401, 200]


def test_a_keys_limits_are_its_own() -> None:
    async def main() -> None:
        target, gate = gated()
        async with serving(target, app={"keys": KEYS}) as (app, desk):
            alice, bob = bearer("sk-alice-123"), bearer("sk-bob-456789")
            first = asyncio.create_task(call(app, body=BODY, headers=bob))
            await until(lambda: desk.num_open == 1)
            response = await call(app, body=BODY, headers=bob)
            assert (response.status, error_of(response)["code"]) == (429, "rate_limit_exceeded")
            other = asyncio.create_task(call(app, body=BODY, headers=alice))
            await until(lambda: desk.num_open == 2)
            gate.set()
            assert [(await first).status, (await other).status] == [200, 200]
            await until(lambda: desk.num_open == 0)
            assert (await call(app, body=BODY, headers=bob)).status == 200

    run(main())


class Echo:
    """A query that counts as a request of its key."""

    path, method = "/echo", "POST"

    def answer(self, body: Any) -> dict[str, Any]:
        return dict(body)


@pytest.mark.parametrize(
    "mistake",
    [
        {"body": {"prompt": 7}},
        {"body": b"{"},
        {"body": BODY, "headers": {"content-type": "text/plain"}},
        {"path": Echo.path, "body": {}},
        {"path": Echo.path, "body": b"["},
    ],
    ids=["field", "json", "type", "query", "bad query"],
)
def test_mistakes_and_queries_count_as_requests(mistake: dict[str, Any]) -> None:
    keys = Keys.from_lines(["carol:sk-carol-123 requests_per_minute=3"])
    key = bearer("sk-carol-123")
    wrong = {**mistake, "headers": {**key, **mistake.get("headers", {})}}
    calls = [*[wrong] * 3, {"body": BODY, "headers": key}]
    *first, last = ask(*calls, app={"keys": keys}, queries=[Echo()])
    assert 429 not in [response.status for response in first]
    assert (last.status, error_of(last)["code"]) == (429, "rate_limit_exceeded")


def test_what_the_server_is_too_full_for_does_not_count() -> None:
    keys = Keys.from_lines(["carol:sk-carol-123 requests_per_minute=3"])

    async def main() -> None:
        target, gate = gated()
        async with serving(target, app={"keys": keys}, max_batch=1, max_queue=1) as (app, desk):
            carol = bearer("sk-carol-123")
            first = asyncio.create_task(call(app, body=BODY, headers=carol))
            await until(lambda: desk.num_open == 1)
            for _ in range(4):
                response = await call(app, body={**BODY, "n": 2}, headers=carol)
                assert error_of(response)["code"] == "queue_full"
            gate.set()
            await first

    run(main())


async def unread(app: Any, key: str) -> int:
    """The status of a request whose body cannot be read."""
    statuses: list[int] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    headers = {"content-type": "application/json", **bearer(key)}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": PlainRoute.path, "headers": encoded}
    await app(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize(
    ("limit", "places"), [("max_running=1", 8), ("requests_per_minute=1", 8), ("", 0)]
)
def test_a_request_that_has_to_go_is_refused_before_its_body_is_read(
    limit: str, places: int
) -> None:
    """By the limits of its key, or because its owner has all places there are."""
    keys = Keys.from_lines([f"carol:sk-carol-123 {limit}"])

    async def main() -> None:
        target, gate = gated()
        how: dict[str, Any] = {"app": {"keys": keys}, "max_batch": 1, "max_queue": places}
        async with serving(target, **how) as (app, desk):
            first = asyncio.create_task(call(app, body=BODY, headers=bearer("sk-carol-123")))
            await until(lambda: desk.num_open == 1)
            assert await unread(app, "sk-carol-123") == 429
            gate.set()
            await first

    run(main())


def test_owners_are_digests_and_labels_are_names() -> None:
    seen: list[Any] = []

    async def main() -> None:
        async with serving(app={"keys": KEYS}) as (app, desk):
            enter = desk.enter

            def spy(ask: Ask, owner: str = "", **how: Any) -> Any:
                seen.append(owner)
                return enter(ask, owner, **how)

            desk.enter = spy  # type: ignore[method-assign]
            for key in ("sk-alice-123", "sk-bob-456789", "sk-alice-123"):
                await call(app, body=BODY, headers=bearer(key))

    run(main())
    assert seen[0] == seen[2] != seen[1]
    assert "alice" not in seen[0]


def test_other_origins_are_kept_out_unless_named() -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    preflight = {"method": "OPTIONS", "headers": headers}
    plain = {"body": BODY, "headers": {"origin": "https://a.example"}}
    for response in ask(preflight, plain):
        assert not [name for name in response.headers if name.startswith("access-control")]
    allowed = {"cors_origins": ["https://a.example"], "keys": KEYS}
    first, second = ask(preflight, plain, app=allowed)
    assert first.status == 200
    assert first.headers["access-control-allow-origin"] == "https://a.example"
    assert second.status == 401  # readable for the page, because the origin is allowed
    assert second.headers["access-control-allow-origin"] == "https://a.example"
    asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,openai-beta"
    clients = {**preflight, "headers": {**headers, "access-control-request-headers": asked}}
    response = ask(clients, app=allowed)  # of OpenAI's client for pages
    assert response.status == 200
    assert response.headers["access-control-allow-headers"] == asked
    headers["origin"] = "https://b.example"
    assert ask(preflight, app=allowed).status == 400
