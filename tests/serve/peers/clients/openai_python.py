"""The official Python client: streams beside one another, a class to be filled, turns."""

import asyncio
import json
import sys
from typing import Literal

import openai
import pydantic

ADDRESS, MODEL = sys.argv[1:]
HOW = {"model": MODEL, "seed": 7, "temperature": 0.8}


class Review(pydantic.BaseModel):
    verdict: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


async def streamed(client: openai.AsyncOpenAI, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    parts = await client.chat.completions.create(
        messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True}, **HOW
    )
    text, used = "", None
    async for part in parts:
        text += "".join(choice.delta.content or "" for choice in part.choices)
        used = part.usage or used
    assert used is not None
    assert used.completion_tokens <= 12
    return text


async def beside_one_another() -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{ADDRESS}/v1", api_key="any") as client:
        questions = [f"Count to {number}." for number in range(3, 9)]
        together = await asyncio.gather(*(streamed(client, one) for one in questions))
        assert together == [await streamed(client, one) for one in questions]
        return together


client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="any", max_retries=0)
assert MODEL in [model.id for model in client.models.list()]
messages = [{"role": "user", "content": "Is this soup good?"}]
review = client.chat.completions.parse(messages=messages, response_format=Review, **HOW)
first = client.chat.completions.create(messages=messages, max_tokens=12, **HOW)
messages.append({"role": "assistant", "content": first.choices[0].message.content})
messages.append({"role": "user", "content": "Why?"})
second = client.chat.completions.create(messages=messages, max_tokens=12, logprobs=True, **HOW)
response = client.responses.create(
    model=MODEL, input="Is this soup good?", temperature=0, max_output_tokens=16
)
try:
    client.chat.completions.create(messages=[], **HOW)
except openai.BadRequestError as error:
    refusal = error.param
else:
    refusal = None
print(
    json.dumps(
        {
            "version": openai.__version__,
            "together": asyncio.run(beside_one_another()),
            "structured": review.choices[0].message.parsed.verdict in ("good", "bad"),
            "whole": first.choices[0].message.content,
            "turns": len(second.choices[0].logprobs.content) == second.usage.completion_tokens,
            "response": response.output_text,
            "refused": refusal == "messages",
        }
    )
)
