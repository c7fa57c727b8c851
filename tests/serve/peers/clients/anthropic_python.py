"""Anthropic's Python client: a message whole and streamed, stop sequences, turns, a count."""

import json
import sys

import anthropic

ADDRESS, MODEL = sys.argv[1:]
client = anthropic.Anthropic(base_url=ADDRESS, api_key="any", max_retries=0)
how = {
    "model": MODEL,
    "max_tokens": 12,
    "system": "You are a cook.",
    "extra_body": {"seed": 7, "temperature": 0.8},
}
messages = [{"role": "user", "content": "Is this soup good?"}]
whole = client.messages.create(messages=messages, **how)
with client.messages.stream(messages=messages, **how) as stream:
    streamed = "".join(stream.text_stream)
    final = stream.get_final_message()
messages += [
    {"role": "assistant", "content": whole.content},
    {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
]
second = client.messages.create(messages=messages, **how)
read = second.usage.input_tokens + (second.usage.cache_read_input_tokens or 0)
counted = client.messages.count_tokens(model=MODEL, messages=messages, system="You are a cook.")
stopped = client.messages.create(
    messages=messages[:1], **{**how, "max_tokens": 64, "stop_sequences": [" "]}
)
try:
    client.messages.create(messages=[], **how)
except anthropic.BadRequestError:
    refused = True
else:
    refused = False
print(
    json.dumps(
        {
            "version": anthropic.__version__,
            "whole": whole.content[0].text,
            "streamed": streamed,
            "turns": read == counted.input_tokens,
            "stopped": stopped.stop_reason == "stop_sequence",
            "ended": final.stop_reason == whole.stop_reason,
            "refused": refused,
        }
    )
)
