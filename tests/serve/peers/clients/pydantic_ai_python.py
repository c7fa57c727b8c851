"""pydantic-ai: an agent that is asked, streamed, and made to fill a class."""

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

ADDRESS, MODEL = sys.argv[1:]
HOW = {"seed": 7, "temperature": 0.8, "max_tokens": 32}


class Review(BaseModel):
    verdict: Literal["good", "bad"]


model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{ADDRESS}/v1", api_key="any"))
agent = Agent(model, instructions="You are a cook.", model_settings=HOW)


async def streamed() -> str:
    async with agent.run_stream("Is this soup good?") as result:
        return str(await result.get_output())


whole = agent.run_sync("Is this soup good?")
turn = agent.run_sync("Why?", message_history=whole.all_messages())
review = Agent(model, output_type=NativeOutput(Review), model_settings=HOW).run_sync("A review.")
print(
    json.dumps(
        {
            "version": version("pydantic-ai-slim"),
            "whole": whole.output,
            "streamed": asyncio.run(streamed()),
            "turns": len(turn.all_messages()) == 4,
            "structured": review.output.verdict in ("good", "bad"),
        }
    )
)
