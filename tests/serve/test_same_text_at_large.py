"""Same seed, same text over a socket: the default model, 200 requests, no difference."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import forerun as fr
from forerun.cli.loading import load_drafter
from forerun.loading.default import default_model
from forerun.serve.http.assembly import make_server
from forerun.serve.http.lifecycle import Server, bind
from forerun.serve.http.requests import Bounds

pytestmark = pytest.mark.serve

NUM_TOKENS = 8
QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Italy?",
    "Write a line about the sea.",
    "Count from one to ten.",
    "Say: one two one two one two.",
]
SEEDS = (1, 2)
SWITCHES: list[dict[str, Any]] = [
    {},
    {"speculation": False},
    {"speculation": {"drafter": "suffix"}},
    {"speculation": {"draft_length": 3}},
]


@contextmanager
def served(target: Any) -> Iterator[str]:
    """The address of a server in a thread."""
    bound = bind("127.0.0.1", 0, Bounds())
    drafters = {name: load_drafter(name) for name in ("heads+suffix", "suffix", "none")}
    is_ready, loops = threading.Event(), []

    def work() -> None:
        app, _ = make_server(target, drafters)
        server = Server(app, drain_seconds=5, announce=is_ready.set)
        loops.append(server)
        server.run(sockets=[bound])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert is_ready.wait(180)
        host, port = bound.getsockname()
        yield f"http://{host}:{port}"
    finally:
        loops[0].should_exit = True
        thread.join(60)


def question(text: str, seed: int, **options: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "seed": seed,
        "max_tokens": NUM_TOKENS,
        "temperature": 0.8,
        **options,
    }


async def answer(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The text of an answer, streamed or whole."""
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return str(response.json()["choices"][0]["message"]["content"])
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_200_requests_without_a_difference() -> None:
    """5 questions x 2 seeds x 4 switches, streamed and whole: 80 of them alone, and 120 among 16
    clients.  The questions come back, so most of their prompts lie in some row already."""
    target = default_model()
    expected = {
        (text, seed): fr.generate(
            target,
            [{"role": "user", "content": text}],
            drafter=None,
            sampling=fr.Sampling(temperature=0.8, seed=seed),
            max_new_tokens=NUM_TOKENS,
        ).text
        for text, seed in itertools.product(QUESTIONS, SEEDS)
    }
    assert len(set(expected.values())) > len(QUESTIONS)
    bodies = [
        question(text, seed, stream=stream, **switch)
        for stream, switch, seed, text in itertools.product(
            (False, True), SWITCHES, SEEDS, QUESTIONS
        )
    ]
    busy = (bodies + bodies)[:120]

    async def main(address: str) -> list[str]:
        async with httpx.AsyncClient(base_url=address, timeout=300) as client:
            alone = [await answer(client, body) for body in bodies]
            places = asyncio.Semaphore(16)

            async def one(body: dict[str, Any]) -> str:
                async with places:
                    return await answer(client, body)

            return alone + list(await asyncio.gather(*map(one, busy)))

    with served(target) as address:
        texts = asyncio.run(main(address))
    assert len(texts) == 200
    wrong = [
        body
        for body, text in zip(bodies + busy, texts, strict=True)
        if text != expected[body["messages"][0]["content"], body["seed"]]
    ]
    assert wrong == []
