"""litellm: chats whole and streamed, a completion, a format."""

import json
import sys
from importlib.metadata import version

import litellm

ADDRESS, MODEL = sys.argv[1:]
SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"enum": ["good", "bad"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "review", "schema": SCHEMA}}
messages = [{"role": "user", "content": "Is this soup good?"}]
how = {"model": f"openai/{MODEL}", "api_base": f"{ADDRESS}/v1", "api_key": "any"}
how |= {"seed": 7, "temperature": 0.8, "max_tokens": 24}
whole = litellm.completion(messages=messages, **how)
parts = list(litellm.completion(messages=messages, stream=True, **how))
review = litellm.completion(messages=messages, response_format=FORMAT, **how)
prompt = litellm.text_completion(
    prompt="Soup is", **{**how, "model": f"text-completion-openai/{MODEL}"}
)
print(
    json.dumps(
        {
            "version": version("litellm"),
            "whole": whole.choices[0].message.content,
            "streamed": "".join(part.choices[0].delta.content or "" for part in parts),
            "completed": bool(prompt.choices[0].text),
            "structured": json.loads(review.choices[0].message.content)["verdict"]
            in ("good", "bad"),
        }
    )
)
