"""LangChain: whole, streamed, several at once, in a chain, and a class to be filled."""

import json
import sys
from importlib.metadata import version
from typing import Literal

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

ADDRESS, MODEL = sys.argv[1:]


class Review(BaseModel):
    """What somebody thinks of a meal."""

    verdict: Literal["good", "bad"]


HOW = {"base_url": f"{ADDRESS}/v1", "api_key": "any", "model": MODEL, "seed": 7, "temperature": 0.8}
model = ChatOpenAI(max_tokens=12, **HOW)
whole = model.invoke("Is this soup good?").content
streamed = "".join(part.content for part in model.stream("Is this soup good?"))
several = model.batch(["Count to 3.", "Count to 4.", "Count to 5."])
chain = ChatPromptTemplate.from_messages([("user", "Is this {food} good?")]) | model
critic = ChatOpenAI(max_tokens=32, **HOW).with_structured_output(Review, method="json_schema")
print(
    json.dumps(
        {
            "version": version("langchain-openai"),
            "whole": whole,
            "streamed": streamed,
            "chained": (chain | StrOutputParser()).invoke({"food": "soup"}),
            "several": [bool(one.content) for one in several] == [True] * 3,
            "structured": critic.invoke("Is this soup good?").verdict in ("good", "bad"),
        }
    )
)
