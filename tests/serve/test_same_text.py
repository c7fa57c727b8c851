"""Same seed, same text through the server: idle or busy, streamed or whole, drafted or not."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
from serving import PROMPT, Answered, call, run, serving, tiny_llama

import forerun as fr
from forerun.drafters import NGram, Suffix

NUM_TOKENS = 12
PROMPTS = [PROMPT, PROMPT + " fox", "stop here, stop there;", PROMPT + " fox jumps over"]
WAYS: dict[str, dict[str, Any]] = {
    "usual": {},
    "off": {"speculation": None},
    "suffix": {"speculation": {"drafter": "suffix"}},
    "short": {"speculation": {"drafter": "ngram", "draft_length": 2}},
    "streamed": {"stream": True},
    "streamed, off": {"stream": True, "speculation": None},
}


@cache
def expected(prompt: str, seed: int) -> tuple[str, ...]:
    """Two samples by `generate`, alone and without a drafter."""
    outs = fr.generate(
        tiny_llama(),
        list(tiny_llama().tokenizer.encode(prompt)),
        drafter=None,
        sampling=fr.Sampling(temperature=0.8, seed=seed, n=2),
        max_new_tokens=NUM_TOKENS,
    )
    return tuple(out.text for out in outs)


def texts(answered: Answered) -> tuple[str, ...]:
    """Of both choices; what was streamed must agree with what its end sums up."""
    assert answered.status == 200
    if not answered.headers["content-type"].startswith("text/event-stream"):
        return tuple(answered.json()["texts"])
    pieces = [event for event in answered.events if isinstance(event, dict)]
    parts = ["".join(e["text"] for e in pieces if e.get("choice") == i) for i in range(2)]
    assert parts == pieces[-1]["texts"]
    return tuple(parts)


@pytest.mark.parametrize("num_clients", [1, 16])
def test_same_seed_same_text(num_clients: int) -> None:
    """Every way of asking, for every prompt; with several clients they share passes and rows."""
    bodies = [
        {"prompt": prompt, "seed": seed, "n": 2, "max_tokens": NUM_TOKENS, **way}
        for seed, prompt in enumerate(PROMPTS[: 1 if num_clients == 1 else None])
        for way in WAYS.values()
    ]

    async def main() -> Any:
        drafters = {"ngram": NGram(), "suffix": Suffix(), "none": None}
        async with serving(tiny_llama(), drafters=drafters) as (app, _):
            places = asyncio.Semaphore(num_clients)

            async def ask(body: Any) -> tuple[str, ...]:
                async with places:
                    return texts(await call(app, body=body))

            return await asyncio.gather(*map(ask, bodies))

    wrong = [
        body
        for body, answer in zip(bodies, run(main()), strict=True)
        if answer != expected(body["prompt"], body["seed"])
    ]
    assert wrong == []


def test_another_seed_gives_another_text() -> None:
    """Or the test above would show nothing."""
    assert len({expected(PROMPT, seed) for seed in range(4)}) == 4
