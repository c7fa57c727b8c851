"""The official `openai` client, synchronous and not, through every route and option."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from sockets import server_at_a_socket
from talking import HERMES, MESSAGES, generations, talker

import forerun as fr

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")
pytestmark = pytest.mark.serve

MODEL = "babbler"
PROMPT = MESSAGES[0]["content"]
HOW: dict[str, Any] = {"model": MODEL, "seed": 7, "temperature": 0.8}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"enum": ["here", "there"]}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    }
]
NO_SPACE = {str(talker(HERMES).tokenizer.encode(sign)[0]): -100 for sign in " \n\t\r"}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server_at_a_socket(talker(HERMES), rules=("match", "ratio")) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Any:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0, timeout=60)


def expected(prompt: Any, count: int = 24, n: int = 1, **options: Any) -> list[Any]:
    sampling = fr.Sampling(seed=7, temperature=0.8, n=n, **options)
    return list(generations(talker(HERMES), prompt, sampling=sampling, max_new_tokens=count))


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_completions(client: Any) -> None:
    told = client.completions.create(prompt=PROMPT, max_tokens=24, n=2, logprobs=2, **HOW)
    answers = expected(PROMPT, n=2)
    assert [choice.text for choice in told.choices] == [answer.text for answer in answers]
    assert told.usage.completion_tokens == sum(len(answer.tokens) for answer in answers)
    assert len(told.choices[0].logprobs.tokens) == len(answers[0].tokens)
    assert told.system_fingerprint.startswith("fp_")
    assert told.usage.prompt_tokens_details.cached_tokens >= 0
    assert told.usage.model_extra["speculation"]["rule"] == "match"


def test_completions_streamed(client: Any) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(
            prompt=PROMPT, max_tokens=24, n=2, stream=True, stream_options=options, **HOW
        )
    )
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [answer.text for answer in expected(PROMPT, n=2)]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


def test_chat(client: Any) -> None:
    told = client.chat.completions.create(
        messages=MESSAGES, max_completion_tokens=24, n=2, logprobs=True, top_logprobs=3, **HOW
    )
    answers = expected(MESSAGES, n=2)
    assert [choice.message.content for choice in told.choices] == [a.text for a in answers]
    assert len(told.choices[0].logprobs.content[0].top_logprobs) == 3
    assert told.choices[0].message.role == "assistant"
    assert told.choices[0].finish_reason in ("stop", "length")


def test_chat_streamed(client: Any) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(
        client.chat.completions.create(messages=MESSAGES, max_tokens=24, **options, **HOW)
    )
    parts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(parts) == expected(MESSAGES)[0].text
    assert chunks[-1].usage.total_tokens > 0
    text = "".join(parts)
    with client.chat.completions.stream(messages=MESSAGES, stop=text[6:9], **HOW) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(text[6:9])]


def test_every_sampling_option(client: Any) -> None:
    told = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=24,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={"5": -100, "7": 3},
        stop=["zzz", "\n\n"],
        user="somebody",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        extra_body={"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1, "priority": 1},
        **HOW,
    )
    options: dict[str, Any] = {
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {5: -100, 7: 3},
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
    }
    sampling = fr.Sampling(seed=7, temperature=0.8, **options)
    (answer,) = generations(
        talker(HERMES), MESSAGES, sampling=sampling, max_new_tokens=24, stop=["zzz", "\n\n"]
    )
    assert told.choices[0].message.content == answer.text


def test_speculation_cannot_change_the_text(client: Any) -> None:
    texts, prints = set(), set()
    for speculation in (True, False, {"drafter": "none"}, {"draft_length": 2}):
        told = client.chat.completions.create(
            messages=MESSAGES,
            max_tokens=24,
            extra_body={"speculation": speculation, "fates": True},
            **HOW,
        )
        texts.add(told.choices[0].message.content)
        prints.add(told.system_fingerprint)
        assert len(told.choices[0].model_extra["fates"]) == told.usage.completion_tokens
    assert len(texts) == len(prints) == 1


def test_json_schema_and_parse(client: Any) -> None:
    told = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=60,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
        },
        logit_bias=NO_SPACE,
        **HOW,
    )
    assert json.loads(told.choices[0].message.content)["colour"] in ("red", "green")
    thing = pydantic.create_model("Thing", colour=(Literal["red", "green"], ...))
    parsed = client.chat.completions.parse(
        messages=MESSAGES, response_format=thing, logit_bias=NO_SPACE, **HOW
    )
    assert parsed.choices[0].message.parsed.colour in ("red", "green")


def test_tools(client: Any) -> None:
    named: Any = {"type": "function", "function": {"name": "look_up"}}
    told = client.chat.completions.create(
        messages=MESSAGES, tools=TOOLS, tool_choice=named, max_tokens=200, **HOW
    )
    (call,) = told.choices[0].message.tool_calls
    assert told.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["place"] in ("here", "there")
    chunks = client.chat.completions.create(
        messages=MESSAGES, tools=TOOLS, tool_choice=named, max_tokens=200, stream=True, **HOW
    )
    calls = [d for c in chunks for choice in c.choices for d in choice.delta.tool_calls or ()]
    assert "".join(d.function.arguments for d in calls) == call.function.arguments
    answered = [
        *MESSAGES,
        told.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "nothing"},
    ]
    after = client.chat.completions.create(messages=answered, tools=TOOLS, max_tokens=4, **HOW)
    assert after.usage.prompt_tokens > told.usage.prompt_tokens


def test_responses(client: Any) -> None:
    extra = {"seed": 7}
    told = client.responses.create(
        model=MODEL, input=PROMPT, temperature=0.8, max_output_tokens=24, extra_body=extra
    )
    (answer,) = expected(MESSAGES)
    assert told.output_text == answer.text
    assert told.usage.output_tokens == len(answer.tokens)
    events = list(
        client.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": PROMPT}],
            temperature=0.8,
            max_output_tokens=24,
            stream=True,
            extra_body=extra,
        )
    )
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.text
    assert events[-1].response.output_text == answer.text
    chosen: Any = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA}}
    told = client.responses.create(
        model=MODEL,
        input=PROMPT,
        instructions="be brief",
        text=chosen,
        max_output_tokens=60,
        extra_body={"seed": 7, "logit_bias": NO_SPACE},
    )
    assert json.loads(told.output_text)["colour"] in ("red", "green")


def test_responses_with_the_clients_own_helper(client: Any) -> None:
    text = expected(MESSAGES)[0].text
    extra = {"seed": 7, "stop": text[6:9]}
    with client.responses.stream(
        model=MODEL, input=PROMPT, temperature=0.8, extra_body=extra
    ) as stream:
        final = stream.get_final_response()
    assert final.output_text == text[: text.index(text[6:9])]


def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=MESSAGES, extra_body={"colour": 1}, **HOW)
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "colour")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt="z" * 600, **HOW)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="a", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


def test_asynchronously(address: str) -> None:
    async def work() -> None:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="any") as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            completions = [
                client.completions.create(prompt=PROMPT, max_tokens=24, **HOW) for _ in range(8)
            ]
            texts = {told.choices[0].text for told in await asyncio.gather(*completions)}
            assert texts == {expected(PROMPT)[0].text}
            stream = await client.chat.completions.create(
                messages=MESSAGES, max_tokens=24, stream=True, **HOW
            )
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(parts) == expected(MESSAGES)[0].text
            told = await client.responses.create(
                model=MODEL,
                input=PROMPT,
                temperature=0.8,
                max_output_tokens=24,
                extra_body={"seed": 7},
            )
            assert told.output_text == expected(MESSAGES)[0].text
            events = await client.responses.create(
                model=MODEL, input=PROMPT, max_output_tokens=4, stream=True
            )
            kinds = [event.type async for event in events]
            assert kinds[0] == "response.created"
            assert kinds[-1] in ("response.completed", "response.incomplete")

    asyncio.run(asyncio.wait_for(work(), 60))
