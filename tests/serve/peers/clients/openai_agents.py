"""openai-agents: an agent that is asked, streamed, and made to fill a class."""

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Literal

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

ADDRESS, MODEL = sys.argv[1:]
HOW = ModelSettings(temperature=0.8, max_tokens=32, extra_body={"seed": 7})


class Review(BaseModel):
    verdict: Literal["good", "bad"]


async def main() -> dict[str, object]:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{ADDRESS}/v1", api_key="any", max_retries=0)
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    cook = Agent(name="cook", instructions="You are a cook.", model=model, model_settings=HOW)
    whole = await Runner.run(cook, "Is this soup good?")
    parts = Runner.run_streamed(cook, "Is this soup good?")
    async for _ in parts.stream_events():
        pass
    again = await Runner.run(cook, [*whole.to_input_list(), {"role": "user", "content": "Why?"}])
    critic = Agent(name="critic", model=model, model_settings=HOW, output_type=Review)
    review = await Runner.run(critic, "A review of a soup.")
    return {
        "version": version("openai-agents"),
        "whole": whole.final_output,
        "streamed": parts.final_output,
        "turns": bool(again.final_output),
        "structured": review.final_output.verdict in ("good", "bad"),
    }


print(json.dumps(asyncio.run(main())))
