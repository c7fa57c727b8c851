"""What servers of other projects check and our other tests do not: see docs/serving-tests.md."""

from __future__ import annotations

from typing import Any

import pytest
from serving import run, tiny_llama
from talking import (
    CHAT,
    COMPLETIONS,
    HERMES,
    MESSAGES,
    RESPONSES,
    Sayer,
    answer_to,
    talker,
    talking,
)

TOOLS = [{"type": "function", "function": {"name": "f"}}]
LONG = "z" * 600
ELSEWHERE = [
    *("/infill", "/slots", "/props", "/lora-adapters", "/apply-template", "/rerank", "/embedding"),
    *("/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions", "/v1/responses/resp_1/cancel"),
    *("/v1/chat/completions/batch", "/v1/chat/completions/render", "/inference/v1/generate"),
    *("/v1/load_lora_adapter", "/v2/embed", "/v2/chat", "/pooling", "/classify", "/score"),
    *("/invocations", "/ping", "/load", "/version", "/tokenizer_info", "/sleep", "/pause"),
    *("/v1beta/models/tiny:generateContent", "/models/load", "/tools"),
]
"""Routes of llama.cpp, vLLM and SGLang that we have not."""
THEIRS = """
    n_predict n_probs cache_prompt id_slot samplers json_schema timings_per_token n_keep
    return_progress response_fields lora t_max_predict_ms mirostat dry_multiplier xtc_probability
    typical_p prompt_logprobs return_token_ids return_tokens_as_token_ids use_beam_search
    truncate_prompt_tokens allowed_token_ids bad_words cache_salt kv_transfer_params
    logprob_token_ids thinking_token_budget include_reasoning prompt_embeds vllm_xargs request_id
    length_penalty skip_special_tokens ebnf separate_reasoning return_hidden_states
    session_params lora_path custom_logit_processor
"""
"""Fields of theirs that would change an answer or its form, and that we do not have."""


def statuses(*asked: tuple[str, Any], **how: Any) -> list[Any]:
    async def work() -> list[Any]:
        async with talking() as ask:
            return [await ask(path, body, **how) for path, body in asked]

    return list(run(work()))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": LONG}),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
        (RESPONSES, {"input": LONG}),
    ],
    ids=["completions", "chat", "responses"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_prompt_that_is_too_long_is_400_before_any_event(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    (told,) = statuses((path, {**body, "stream": stream}))
    assert told.status == 400
    assert told.json()["error"]["code"] == "context_length_exceeded"
    assert "512" in told.json()["error"]["message"]


def test_what_is_not_offered_is_not_found() -> None:
    for told in statuses(*((path, {}) for path in ELSEWHERE)):
        assert told.status == 404
        assert told.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": MESSAGES})],
    ids=["completions", "chat"],
)
def test_fields_of_theirs_are_refused_by_name(path: str, body: dict[str, Any]) -> None:
    asked = [(path, {**body, "max_tokens": 2, name: 1}) for name in THEIRS.split()]
    for name, told in zip(THEIRS.split(), statuses(*asked), strict=True):
        assert told.status == 400, name
        assert told.json()["error"]["param"] == name
        assert name in told.json()["error"]["message"]


def test_other_seeds_and_none_give_other_texts() -> None:
    bodies = [{"prompt": "the", "max_tokens": 24, "seed": seed} for seed in (1, 2, None, None)]
    told = answer_to(COMPLETIONS, *bodies)
    assert len({each["choices"][0]["text"] for each in told}) == 4


def test_a_bias_forces_and_forbids_tokens() -> None:
    (space,) = talker().tokenizer.encode(" ")
    body = {"prompt": "the", "max_tokens": 8, "seed": 1, "fates": True}
    forced, free = answer_to(
        COMPLETIONS, {**body, "logit_bias": {str(space): 100}}, {**body, "temperature": 2}
    )
    assert forced["choices"][0]["token_ids"] == [space] * 8
    (first, *_) = free["choices"][0]["token_ids"]
    banned = answer_to(COMPLETIONS, {**body, "temperature": 2, "logit_bias": {str(first): -100}})
    assert first not in banned["choices"][0]["token_ids"]


def test_the_ending_token_can_be_ignored() -> None:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 30}
    ended, longer = answer_to(CHAT, body, {**body, "ignore_eos": True}, target=Sayer("short"))
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 30
    assert longer["choices"][0]["finish_reason"] == "length"
    assert longer["usage"]["completion_tokens"] == 30


def test_a_prompt_that_was_read_before_is_counted_as_cached() -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "seed": 1}
    first, second = answer_to(CHAT, body, body, target=tiny_llama())
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < second["usage"]["prompt_tokens"]
    assert first["choices"][0]["message"] == second["choices"][0]["message"]


def test_samples_share_the_prompt_they_read() -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "seed": 1, "n": 3}
    told = answer_to(CHAT, body, target=tiny_llama())
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert told["usage"]["prompt_tokens"] == len(tiny_llama().tokenizer.encode(_worded()))


def _worded() -> str:
    tokenizer = tiny_llama().tokenizer
    return str(tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True))


def test_choices_have_calls_of_their_own() -> None:
    body = {
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "n": 3,
        "seed": 1,
        "max_tokens": 200,
        "stream": True,
    }
    events = answer_to(CHAT, body, target=talker(HERMES))
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        calls = [call for choice in mine for call in choice["delta"].get("tool_calls", ())]
        assert [call["index"] for call in calls] == [0]
        assert mine[-1]["finish_reason"] == "tool_calls"
    ids = {call["id"] for c in choices for call in c["delta"].get("tool_calls", ())}
    assert len(ids) == 3


def test_a_forced_call_that_was_cut_ends_with_length() -> None:
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "max_tokens": 3}
    (choice,) = answer_to(CHAT, body, target=talker(HERMES))["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == "<to"


def test_emoji_come_through_with_their_tokens() -> None:
    text = "a 🦊 and 👩‍👩‍👧"
    body = {"messages": MESSAGES, "temperature": 0, "logprobs": True, "fates": True}
    (choice,) = answer_to(CHAT, body, target=Sayer(text))["choices"]
    assert choice["message"]["content"] == text
    raw = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert raw.decode() == text + "<end>"
    assert "".join(part["text"] for part in choice["tokens"]) == text


def test_an_id_and_a_model_are_told() -> None:
    for path, body, begin in (
        (COMPLETIONS, {"prompt": "a", "max_tokens": 1}, "cmpl-"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 1}, "chatcmpl-"),
        (RESPONSES, {"input": "a", "max_output_tokens": 1}, "resp_"),
    ):
        one, other = answer_to(path, body, body)
        assert one["model"] == "tiny"
        assert one["id"].startswith(begin)
        assert one["id"] != other["id"]
        assert one["system_fingerprint"] == other["system_fingerprint"]
