"""The largest bodies: refused by their length before anything looks at what is in them."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asking import BODY, KEYS, ask, bearer, error_of
from serving import PlainRoute, call, run, serving, until
from talking import offer_of, refusal, talker

from forerun.serve.admission.errors import ApiError
from forerun.serve.http import requests
from forerun.serve.http.requests import Bounds
from forerun.serve.http.worker import Turns
from forerun.serve.openai.fields import Whole
from forerun.serve.openai.objects import parse_object
from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.routes.completions import Completions
from forerun.serve.openai.routes.queries import Detokenize, Tokenize
from forerun.serve.openai.routes.responses import Responses

MIB = 2**20


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"1," * (2 * MIB - 8) + b"1]}",
        b'{"prompt": [' + b"[]," * MIB + b"[]]}",
        b'{"stop": [' + b'"",' * MIB + b'""]}',
        json.dumps({f"k{i}": 1 for i in range(300_000)}).encode(),
    ],
    ids=["ids", "lists", "texts", "keys"],
)
def test_too_many_values_are_refused_before_they_are_parsed(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(*args: Any, **how: Any) -> Any:
        raise AssertionError("the body was parsed")

    monkeypatch.setattr(json, "loads", parsed)
    with pytest.raises(ApiError, match="JSON values") as caught:
        parse_object(body, 2**18)
    assert (caught.value.status, caught.value.code) == (400, "too_many_values")


@pytest.mark.parametrize("text", ["a,b" * 1000, '\\",' * 1000, "\\" * 999, '"' * 999, ",\\"])
def test_signs_in_texts_are_no_values(text: str) -> None:
    body = {"prompt": text, "n": [text, text]}
    assert parse_object(json.dumps(body).encode(), 40) == body


def test_the_bound_is_the_servers() -> None:
    bounds = Bounds(max_values=100)
    most, more = ask(
        {"body": {**BODY, "stop": ["zz"] * 10}},
        {"body": {**BODY, "stop": ["zz"] * 30}},
        app={"bounds": bounds},
    )
    assert most.status == 200
    assert (more.status, error_of(more)["code"]) == (400, "too_many_values")


def test_ids_are_looked_at_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    check = Whole.check

    def noting(kind: Whole, value: Any, where: str) -> int:
        looked_at.append(where)
        return check(kind, value, where)

    monkeypatch.setattr(Whole, "check", noting)
    route = Completions(offer_of())
    room = talker().max_context - 1
    assert route.read({"prompt": [5] * room, "max_tokens": 1}).prompts == [[5] * room]
    assert "prompt[0]" not in looked_at
    error = refusal(route, prompt=[5] * 400_000)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "400000 tokens" in error.message
    error = refusal(route, prompt=[[5] * 3, [5] * 400_000])
    assert (error.code, error.param) == ("context_length_exceeded", "prompt[1]")
    assert not [where for where in looked_at if where.startswith("prompt")]
    for wrong in (True, -1, 10**6, "a", 1.5, None):
        assert refusal(route, prompt=[5, 6, wrong]).param == "prompt[2]"
    assert route.read({"prompt": [5, 6.0], "max_tokens": 1}).prompts == [[5, 6]]


def test_what_a_message_holds_is_bounded() -> None:
    part = {"type": "text", "text": "a"}
    call_ = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    chat, responses = Chat(offer_of()), Responses(offer_of())
    many = [{"role": "user", "content": [part] * 2000}]
    assert refusal(chat, messages=many).param == "messages[0].content"
    many = [{"role": "assistant", "tool_calls": [call_] * 200}]
    assert refusal(chat, messages=many).param == "messages[0].tool_calls"
    many = [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 2000}]
    assert refusal(responses, input=many).param == "input[0].content"


def test_texts_and_ids_that_fit_no_context_are_not_converted() -> None:
    offer = offer_of()
    assert offer.max_context is not None
    for query, body in (
        (Tokenize(offer), {"prompt": "a" * (offer.max_context * offer.longest_token + 1)}),
        (Detokenize(offer), {"tokens": [5] * (offer.max_context + 1)}),
    ):
        with pytest.raises(ApiError) as caught:
            query.answer(body)
        assert caught.value.code == "context_length_exceeded"


def test_large_bodies_are_taken_in_turn_and_small_ones_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners: list[str] = []
    gate = asyncio.Event()

    class Held(Turns):
        @asynccontextmanager
        async def turn(self, owner: str) -> AsyncIterator[None]:
            async with super().turn(owner):
                owners.append(owner)
                await gate.wait()
                yield

    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(requests, "Turns", Held)
    large = {"prompt": "the quick brown fox " * 10}
    alice, bob = bearer("sk-alice-123"), bearer("sk-bob-456789")

    async def main() -> None:
        async with serving(app={"keys": KEYS}) as (app, _):
            turns = app.router.routes[0].app._bodies._turns
            tasks = [asyncio.create_task(call(app, body=large, headers=alice)) for _ in range(3)]
            await until(lambda: len(turns._waiting) == 2)
            assert (await call(app, body=BODY, headers=alice)).status == 200
            tasks.append(asyncio.create_task(call(app, body=large, headers=bob)))
            await until(lambda: len(turns._waiting) == 3)
            gate.set()
            assert {(await task).status for task in tasks} == {200}

    run(main())
    first, second, *others = owners
    assert second != first  # bob's has not waited for all of alice's
    assert others == [first, first]


def test_large_bodies_that_would_wait_too_long_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(requests, "LARGE_BYTES_PER_SECOND", 100)
    bounds = Bounds(read_seconds=0.1)
    response = ask({"body": {"prompt": "the quick brown fox " * 10}}, app={"bounds": bounds})
    assert (response.status, error_of(response)["code"]) == (503, "overloaded")


def gzipped(body: Any) -> bytes:
    return gzip.compress(json.dumps(body).encode(), mtime=0)  # ids of tests must not change


def test_gzipped_bodies_are_read() -> None:
    packed = {"content-encoding": "GZIP"}
    two = gzip.compress(b'{"prompt": ') + gzip.compress(json.dumps(BODY["prompt"]).encode() + b"}")
    plain, one, several = ask(
        {"body": BODY},
        {"body": gzipped(BODY), "headers": packed},
        {"body": two, "headers": packed},
    )
    assert plain.status == 200
    assert plain.json()["texts"] == one.json()["texts"] == several.json()["texts"]


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("br", gzipped(BODY), 415, "unsupported_encoding"),
        ("gzip, gzip", gzipped(BODY), 415, "unsupported_encoding"),
        ("gzip", json.dumps(BODY).encode(), 400, "invalid_json"),
        ("gzip", gzipped(BODY)[:-9], 400, "invalid_json"),
        ("gzip", gzipped(BODY) + b"rest", 400, "invalid_json"),
        ("gzip", b"", 400, "invalid_json"),
        ("gzip", gzip.compress(b"") * 900, 400, "invalid_json"),
        ("gzip", gzip.compress(b" " * 10**6), 413, "body_too_large"),
        ("gzip", gzip.compress(b" " * 9_000) * 3, 413, "body_too_large"),
    ],
)
def test_what_no_body_can_be_unpacked_from(
    encoding: str, body: bytes, status: int, code: str
) -> None:
    bounds = Bounds(max_body_bytes=20_000)
    how = {"body": body, "headers": {"content-encoding": encoding}}
    response = ask(how, app={"bounds": bounds})
    assert (response.status, error_of(response)["code"]) == (status, code)


def test_no_more_is_unpacked_than_a_body_may_hold() -> None:
    bomb = gzip.compress(b" " * 2**27)
    tracemalloc.start()
    with pytest.raises(ApiError):
        requests._unpacked(bomb, 2**20)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**23


def test_gzip_of_many_empty_members_costs_nothing() -> None:
    """Each member leaves a copy of what comes after it, which is quadratic in their number."""
    many = gzip.compress(b"", mtime=0) * 200_000
    with pytest.raises(ApiError, match="more than 64 members"):
        requests._unpacked(many, 2**22)


def test_reading_is_fair_between_keys() -> None:
    """While one key's bodies wait to be read, another's first one is the next."""
    order: list[str] = []
    gate = threading.Event()

    class Noting(PlainRoute):
        def read(self, body: Any) -> Any:
            gate.wait(30)
            order.append(body["prompt"][:1])
            return super().read(body)

    async def main() -> None:
        async with serving(route=Noting(), app={"keys": KEYS}) as (app, _):
            path = app.router.routes[0].app

            def come(prompt: str, key: str) -> Any:
                headers = {"authorization": f"Bearer {key}"}
                return asyncio.create_task(call(app, body={"prompt": prompt}, headers=headers))

            tasks = [come("attack", "sk-alice-123") for _ in range(6)]
            await until(lambda: len(path._reading._turns._waiting) == 5)
            tasks.append(come("neighbour", "sk-bob-456789"))
            await until(lambda: len(path._reading._turns._waiting) == 6)
            gate.set()
            assert {(await task).status for task in tasks} == {200}

    run(main())
    assert order.index("n") == 1
