"""instructor: a class to be filled, a list of them streamed, and one that is asked for anew."""

import json
import sys
from importlib.metadata import version
from typing import Literal

import instructor
import openai
from pydantic import BaseModel

ADDRESS, MODEL = sys.argv[1:]


class Review(BaseModel):
    verdict: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


client = instructor.from_openai(
    openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="any", max_retries=0),
    mode=instructor.Mode.JSON_SCHEMA,
)
how = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Review this soup."}],
    "seed": 7,
    "max_tokens": 48,
}
review = client.chat.completions.create(response_model=Review, **how)
partial = list(client.chat.completions.create_partial(response_model=Review, **how))
print(
    json.dumps(
        {
            "version": version("instructor"),
            "structured": review.stars in (1, 2, 3),
            "streamed": partial[-1].verdict in ("good", "bad"),
        }
    )
)
