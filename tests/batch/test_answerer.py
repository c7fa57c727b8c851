"""Requests of a batch job on a small model: OpenAI's words, and texts of nothing but the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from serving import tiny_llama

from forerun.batch.answerer import Answered, Answerer, WorkerSettings
from forerun.batch.lines import BatchRequest, first_text, seed_of
from forerun.drafters import NGram

MESSAGES = [{"role": "user", "content": "the cat sat on the mat, the cat sat on"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/completions": {"prompt": "the cat sat on the mat", "max_tokens": 12},
    "/v1/responses": {"input": "the cat sat on the mat", "max_output_tokens": 12},
}


def a_request(index: int, url: str | None, **body: Any) -> BatchRequest:
    custom_id = f"c{index}"
    seeded = {"seed": seed_of(0, custom_id), **(BODIES[url] if url else {}), **body}
    return BatchRequest(index, index + 1, custom_id, url, seeded)


def answers(
    requests: Sequence[BatchRequest], *, at_once: bool = True, **options: Any
) -> list[Answered]:
    drafter = options.pop("drafter", None)
    settings = WorkerSettings(name="tiny", created=7, **options)
    drafters = {"none": None} if drafter is None else {"ngram": drafter, "none": None}

    async def run() -> list[Answered]:
        answerer = Answerer(tiny_llama(), settings, drafters)
        try:
            if at_once:
                return list(await asyncio.gather(*map(answerer.answer, requests)))
            return [await answerer.answer(request) for request in requests]
        finally:
            await answerer.close()

    return asyncio.run(run())


def text_of(answer: Answered) -> str | None:
    return first_text(answer.line["response"]["body"])


@pytest.mark.parametrize("url", BODIES)
def test_openai_s_form(url: str) -> None:
    (answer,) = answers([a_request(0, url)])
    line, response = answer.line, answer.line["response"]
    assert (line["custom_id"], line["error"]) == ("c0", None)
    assert line["id"].startswith("batch_req_")
    assert response["status_code"] == 200
    body = response["body"]
    assert body["model"] == "tiny"
    assert 7 in (body.get("created"), body.get("created_at"))
    assert text_of(answer)
    assert body["usage"]["total_tokens"] == answer.counts.prompt_tokens + answer.counts.new_tokens
    assert "speculation" not in body["usage"]


def test_lines_are_the_same_alone_together_drafted_and_in_any_order() -> None:
    requests = [a_request(i, url) for i, url in enumerate([*BODIES, *BODIES])]
    plain = [answer.line for answer in answers(requests, at_once=False)]
    assert len({str(line["response"]["body"]) for line in plain}) == len(plain)
    for options in (
        {"max_batch": 2},
        {"drafter": NGram(), "draft_length": 4},
        {"drafter": NGram(), "max_batch": 3},
    ):
        assert [answer.line for answer in answers(requests, **options)] == plain
    backwards = answers(requests[::-1], drafter=NGram())
    assert [answer.line for answer in backwards[::-1]] == plain


@pytest.mark.parametrize("choices", [1, 2])
def test_an_answer_that_was_begun_goes_on_to_the_same_line(choices: int) -> None:
    request = a_request(0, "/v1/completions", n=choices, temperature=0.8, max_tokens=24)

    async def run() -> tuple[Answered, list[dict[int, list[list[int]]]]]:
        answerer, seen = (
            Answerer(tiny_llama(), WorkerSettings(name="tiny", created=7), {"none": None}),
            [],
        )
        try:
            task = asyncio.create_task(answerer.answer(request))
            while not task.done():
                await asyncio.sleep(0)
                if (begun := answerer.begun()) not in seen[-1:]:
                    seen.append(begun)
            assert answerer.begun() == {}
            return task.result(), seen
        finally:
            await answerer.close()

    whole, seen = asyncio.run(run())
    kept = max((begun[0] for begun in seen if begun), key=lambda rows: min(map(len, rows)))
    assert [len(rows) for rows in kept] == [23] * choices
    (again,) = answers([replace(request, begun=kept)])
    assert again.line == whole.line
    assert again.counts.rounds < whole.counts.rounds / 2
    other = [[token + 1 for token in rows] for rows in kept]
    assert answers([replace(request, begun=other)])[0].line != whole.line  # they are really used


def test_a_bare_prompt_is_a_message_where_the_model_chats() -> None:
    prompt = MESSAGES[0]["content"]
    chat = a_request(0, "/v1/chat/completions")
    bare = a_request(0, None, prompt=prompt, max_tokens=12)
    messages = a_request(0, None, messages=MESSAGES, max_tokens=12)
    texts = [text_of(answer) for answer in answers([chat, bare, messages])]
    assert texts[0]
    assert len({*texts}) == 1
    (raw,) = answers([bare], is_raw=True)
    assert raw.line["response"]["body"]["object"] == "text_completion"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"temperature": 9}, 400, "'temperature' must be at least 0"),
        ({"nonsense": 1}, 400, "nonsense"),
        ({"model": "gpt-4o"}, 404, "The model 'gpt-4o' does not exist here"),
        ({"stream": True}, 400, "'stream' cannot be honoured in a batch"),
        ({"speculation": {"rule": "ratio"}}, 400, "rule"),
        ({"prompt": "a" * 100_000}, 400, "context"),
    ],
)
def test_what_a_server_refuses_has_its_status_and_the_rest_goes_on(
    body: dict[str, Any], status: int, message: str
) -> None:
    bad, good = a_request(0, "/v1/completions", **body), a_request(1, "/v1/completions")
    refused, answered = answers([bad, good])
    response = refused.line["response"]
    assert (refused.line["error"], response["status_code"]) == (None, status)
    assert message in response["body"]["error"]["message"]
    assert answered.line["response"]["status_code"] == 200


def test_fingerprints_are_of_the_model_and_not_of_the_drafting() -> None:
    async def fingerprint(**options: Any) -> str:
        answerer = Answerer(
            tiny_llama(), WorkerSettings(**options), {"ngram": NGram(), "none": None}
        )
        await answerer.close()
        return answerer.fingerprint

    one = asyncio.run(fingerprint(draft_length=3))
    assert one == asyncio.run(fingerprint(max_batch=2))
