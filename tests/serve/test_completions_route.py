"""Completions: OpenAI's words for what `generate` says."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
from reciting import TEXT, Reciter, token_ids
from talking import COMPLETIONS, answer_to, generations, offer_of, refusal, talker, with_end

import forerun as fr
from forerun.serve.admission.ask import Speculation
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.offer import MOST_TOKENS, Limits
from forerun.serve.openai.replies import Words
from forerun.serve.openai.routes.completions import Completions

PROMPT = "the quick brown fox"
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.8, "seed": 7}
ROUTE = Completions(offer_of())


def texts_of(events: list[Any], num_choices: int = 1) -> list[str]:
    texts = [""] * num_choices
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


def test_choices_are_the_samples_of_generate_whole_or_streamed() -> None:
    prompts = [PROMPT, "stop here"]
    body = {**BODY, "prompt": prompts, "n": 3}
    plain = {**body, "speculation": False}
    whole, events, again = answer_to(COMPLETIONS, body, {**body, "stream": True}, plain)
    sampling = fr.Sampling(temperature=0.8, seed=7, n=3)
    samples = [
        answer.text
        for prompt in prompts
        for answer in generations(talker(), prompt, sampling=sampling, max_new_tokens=12)
    ]
    assert [choice["text"] for choice in whole["choices"]] == samples
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert len(set(samples)) == 6
    assert texts_of(events, 6) == samples
    assert events[-1] == "[DONE]"
    assert [choice["text"] for choice in again["choices"]] == samples
    assert again["system_fingerprint"] == whole["system_fingerprint"]
    assert again["usage"]["speculation"]["drafter"] == "none"
    assert again["usage"]["speculation"]["drafted"] == 0


def test_characters_of_several_tokens_come_whole() -> None:
    target = with_end(Reciter(TEXT))
    start = "the dog "
    body = {"prompt": start, "max_tokens": 200, "temperature": 0}
    whole, events = answer_to(COMPLETIONS, body, {**body, "stream": True}, target=target)
    assert whole["choices"][0]["text"] == TEXT[len(start) :]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert texts_of(events) == [TEXT[len(start) :]]
    assert all("�" not in text for event in events[:-1] for text in texts_of([event, ""]))


@pytest.mark.parametrize("stop", ["stop", ["nowhere", "stop", "over"]])
def test_stop_strings_never_show(stop: Any) -> None:
    target = Reciter(TEXT)
    body = {"prompt": "the dog ", "max_tokens": 200, "temperature": 0, "stop": stop}
    whole, events = answer_to(COMPLETIONS, body, {**body, "stream": True}, target=target)
    (choice,) = whole["choices"]
    assert choice["text"] == TEXT[len("the dog ") : TEXT.index("stop")]
    assert choice["finish_reason"] == "stop"
    assert texts_of(events) == [choice["text"]]


def test_logprobs_are_those_of_generate_and_align_with_tokens() -> None:
    body = {**BODY, "logprobs": 3}
    whole, events = answer_to(COMPLETIONS, body, {**body, "stream": True})
    (choice,) = whole["choices"]
    sampling = fr.Sampling(temperature=0.8, seed=7)
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 12, "logprobs": 3}
    (expected,) = generations(talker(), PROMPT, **options)
    told, words = choice["logprobs"], Words(talker().tokenizer)
    assert told["token_logprobs"] == [each.logprob for each in expected.logprobs]
    assert told["tokens"] == [words.text(token) for token in expected.tokens]
    assert all(3 <= len(table) <= 4 for table in told["top_logprobs"])
    for table, each in zip(told["top_logprobs"], expected.logprobs, strict=True):
        assert table[words.text(each.token)] >= each.logprob
    streamed = [event["choices"][0]["logprobs"] for event in events[:-1]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for part in streamed for item in part[name]] == told[name]


def test_offsets_point_into_the_text() -> None:
    target = with_end(Reciter(TEXT))
    body = {"prompt": "the dog ", "max_tokens": 200, "temperature": 0, "logprobs": 0}
    (choice,) = answer_to(COMPLETIONS, body, target=target)["choices"]
    pairs = zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True)
    whole = [(token, offset) for token, offset in pairs if not token.startswith("bytes:")]
    assert len(whole) > 20
    assert whole.pop() == ("<end>", len(choice["text"]))
    assert all(choice["text"][offset:].startswith(token) for token, offset in whole)


def test_no_alternatives_with_logprobs_0() -> None:
    (choice,) = answer_to(COMPLETIONS, {**BODY, "logprobs": 0})["choices"]
    assert choice["logprobs"]["top_logprobs"] is None
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"])


def test_fates_tell_how_each_token_came_about() -> None:
    body = {**BODY, "fates": True, "logprobs": 0}
    whole, events = answer_to(COMPLETIONS, body, {**body, "stream": True})
    (choice,) = whole["choices"]
    assert set(choice["fates"]) <= {"accepted", "correction", "bonus"}
    assert len(choice["fates"]) == len(choice["token_ids"])
    assert len(choice["fates"]) == whole["usage"]["completion_tokens"]
    assert "".join(part["text"] for part in choice["tokens"]) == choice["text"]
    assert {part["logprob"] for part in choice["tokens"]} <= {*choice["logprobs"]["token_logprobs"]}
    told = [event["choices"][0] for event in events[:-1]]
    assert [token for each in told for token in each["token_ids"]] == choice["token_ids"]
    assert "".join(part["text"] for each in told for part in each["tokens"]) == choice["text"]


def test_parts_have_the_fates_of_their_tokens() -> None:
    text = "the dog and the fox and the dog or the fox and the dog and the fox or the dog"
    target = with_end(Reciter(text))
    body = {
        "prompt": text[:19],
        "max_tokens": 60,
        "fates": True,
        "speculation": {"draft_length": 3},
    }
    (choice,) = answer_to(COMPLETIONS, body, target=target)["choices"]
    pairs = zip(choice["token_ids"], choice["fates"], strict=True)
    *texts, end = [(target.tokenizer.decode([token]), fate) for token, fate in pairs]
    assert {"accepted", "correction"} <= set(choice["fates"])
    assert [(part["text"], part["fate"]) for part in choice["tokens"]] == texts
    assert end[0] == "<end>"


def test_the_prompt_is_echoed() -> None:
    both = {**BODY, "prompt": [token_ids("a dog"), token_ids("the fox")], "echo": True, "n": 2}
    whole, events = answer_to(COMPLETIONS, both, {**both, "stream": True})
    texts = [choice["text"] for choice in whole["choices"]]
    assert [text[:5] for text in texts] == ["a dog", "a dog", "the f", "the f"]
    assert texts_of(events, 4) == texts


def test_counts_so_far_are_those_of_the_tokens_so_far() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**BODY, "ignore_eos": True, "logprobs": 0, "stream": True, "stream_options": options}
    events = answer_to(COMPLETIONS, body)
    *chunks, _, _ = events
    num_tokens = 0
    for chunk in chunks:
        num_tokens += len(chunk["choices"][0]["logprobs"]["tokens"])
        assert chunk["usage"]["completion_tokens"] == num_tokens
    assert num_tokens == 12


def test_counts() -> None:
    body = {**BODY, "n": 2, "ignore_eos": True}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    whole, events = answer_to(COMPLETIONS, body, streamed)
    usage = whole["usage"]
    assert usage["prompt_tokens"] == len(token_ids(PROMPT))
    assert usage["completion_tokens"] == 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    told = usage["speculation"]
    assert told["drafter"] == "ngram"
    assert told["rule"] == "match"
    assert told["rounds"] * told["tokens_per_round"] == pytest.approx(24)
    assert told["accepted"] == pytest.approx((told["acceptance_rate"] or 0) * told["drafted"])
    assert (told["acceptance_rate"] is None) is (told["drafted"] == 0)
    *chunks, last, done = events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}


def test_a_text_that_fills_the_context_ends_with_length() -> None:
    body = {**BODY, "prompt": "a" * 490, "max_tokens": 100, "ignore_eos": True}
    whole = answer_to(COMPLETIONS, body)
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] == 512


def test_options_reach_the_sampling() -> None:
    ask = ROUTE.read(
        {
            **BODY,
            "top_k": 5,
            "top_p": 0.5,
            "min_p": 0.1,
            "presence_penalty": 1,
            "frequency_penalty": -1,
            "repetition_penalty": 1.2,
            "logit_bias": {"3": -100, "4": 2.5},
            "min_tokens": 2,
            "seed": -1,
            "stop": "x",
            "priority": 3,
            "timeout": 2.5,
            "speculation": {"drafter": "none", "draft_length": 4, "rule": "ratio"},
        }
    )
    assert ask.options.sampling == fr.Sampling(
        temperature=0.8,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        logit_bias={3: -100, 4: 2.5},
        min_tokens=2,
        seed=2**64 - 1,
    )
    options = ask.options
    assert (options.stop, options.priority, options.timeout) == (("x",), 3, 2.5)
    assert ask.options.max_new_tokens == 12
    assert ask.speculation == Speculation("none", "ratio")
    assert options.draft_length == 4


def test_defaults_are_those_of_openai() -> None:
    ask = ROUTE.read({"prompt": "a"})
    assert ask.options.max_new_tokens == 16
    assert (ask.options.sampling.temperature, ask.options.sampling.top_p, ask.n) == (1.0, 1.0, 1)
    assert ask.options.sampling.seed != ROUTE.read({"prompt": "a"}).options.sampling.seed
    for top_k in (-1, 0):
        assert ROUTE.read({"prompt": "a", "top_k": top_k}).options.sampling.top_k is None
    everything_null = dict.fromkeys(ROUTE.body.fields) | dict.fromkeys(ROUTE.body.refused)
    assert ROUTE.read({**everything_null, "prompt": "a"}).options.max_new_tokens == 16


HARMLESS = [
    {"user": "u-1"},
    {"metadata": {"a": "b"}},
    {"store": False},
    {"service_tier": "auto"},
    {"service_tier": "default"},
    {"best_of": 1},
    {"speculation": True},
    {"response_format": {"type": "text"}},
]


@pytest.mark.parametrize("fields", HARMLESS, ids=str)
def test_what_can_be_honoured_is_accepted(fields: dict[str, Any]) -> None:
    assert ROUTE.read({**BODY, **fields}).options.max_new_tokens == 12


REFUSED = [
    ("unknown_parameter", "quality", {"quality": 1}),
    ("unsupported_parameter", "suffix", {"suffix": "."}),
    ("unsupported_value", "best_of", {"best_of": 3}),
    ("invalid_value", "best_of", {"best_of": 1, "n": 2}),
    ("unsupported_value", "store", {"store": True}),
    ("unsupported_value", "service_tier", {"service_tier": "flex"}),
    ("invalid_value", "stream_options", {"stream_options": {"include_usage": True}}),
    ("unknown_parameter", "stream_options.x", {"stream": True, "stream_options": {"x": 1}}),
    (
        "invalid_value",
        "stream_options.continuous_usage_stats",
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    ),
    ("integer_above_max_value", "logprobs", {"logprobs": 21}),
    ("integer_above_max_value", "n", {"n": 129}),
    ("integer_below_min_value", "n", {"n": 0}),
    ("invalid_value", "n", {"n": 65, "prompt": ["a", "b"]}),
    ("integer_below_min_value", "max_tokens", {"max_tokens": 0}),
    ("integer_above_max_value", "max_tokens", {"max_tokens": 10**9}),
    ("array_above_max_length", "stop", {"stop": ["x"] * 17}),
    ("string_above_max_length", "stop", {"stop": "x" * 257}),
    ("string_below_min_length", "stop[0]", {"stop": [""]}),
    ("invalid_value", "logit_bias", {"logit_bias": {"330": 1}}),
    ("invalid_value", "logit_bias", {"logit_bias": {"-1": 1}}),
    ("invalid_value", "logit_bias", {"logit_bias": {"dog": 1}}),
    ("decimal_above_max_value", "logit_bias.1", {"logit_bias": {"1": 101}}),
    ("invalid_type", "logit_bias", {"logit_bias": [1]}),
    ("object_above_max_size", "logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}),
    ("decimal_above_max_value", "temperature", {"temperature": 2.1}),
    ("invalid_type", "temperature", {"temperature": "hot"}),
    ("decimal_below_min_value", "top_p", {"top_p": 0}),
    ("integer_above_max_value", "seed", {"seed": 2**64}),
    ("invalid_type", "seed", {"seed": 1.5}),
    ("invalid_type", "stream", {"stream": "yes"}),
    ("array_above_max_length", "prompt", {"prompt": ["a"] * 65}),
    ("array_below_min_length", "prompt", {"prompt": []}),
    ("string_below_min_length", "prompt", {"prompt": ""}),
    ("invalid_type", "prompt[1]", {"prompt": ["a", 1]}),
    ("integer_above_max_value", "prompt[0]", {"prompt": [330]}),
    ("missing_required_parameter", "prompt", {"prompt": None}),
    ("unsupported_value", "speculation.drafter", {"speculation": {"drafter": "oracle"}}),
    ("unsupported_value", "speculation.rule", {"speculation": {"rule": "lenient"}}),
    ("unknown_parameter", "speculation.k", {"speculation": {"k": 1}}),
    ("integer_above_max_value", "speculation.draft_length", {"speculation": {"draft_length": 65}}),
    ("decimal_below_min_value", "timeout", {"timeout": 0}),
    ("integer_above_max_value", "priority", {"priority": 101}),
    ("unsupported_value", "response_format.type", {"response_format": {"type": "xml"}}),
]


@pytest.mark.parametrize(("code", "param", "fields"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_honoured_is_refused_by_name(
    code: str, param: str, fields: dict[str, Any]
) -> None:
    error = refusal(ROUTE, **{**BODY, **fields})
    assert (error.status, error.code, error.param) == (400, code, param)
    assert param in error.message


def test_limits_come_from_one_place() -> None:
    route = Completions(offer_of(limits=Limits(max_tokens=5, max_stops=1, max_choices=2)))
    assert "at most 5. Received 12." in refusal(route, **BODY).message
    body = {**BODY, "max_tokens": 5}
    assert "0 to 1 items long" in refusal(route, **body, stop=["a", "b"]).message
    assert "at most 2. Received 3." in refusal(route, **body, n=3).message
    assert (
        "over all prompts. Received 2 x 2."
        in refusal(route, **{**body, "prompt": ["a", "b"]}, n=2).message
    )


def test_an_answer_is_at_most_as_long_as_the_context_unless_the_server_says_otherwise() -> None:
    assert ROUTE.read({**BODY, "max_tokens": 512}).options.max_new_tokens == 512
    assert "at most 512. Received 513." in refusal(ROUTE, **{**BODY, "max_tokens": 513}).message
    assert ROUTE.body.schema()["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 512
    route = Completions(offer_of(limits=Limits(max_tokens=600)))
    assert route.read({**BODY, "max_tokens": 600}).options.max_new_tokens == 600
    endless = copy(talker())
    endless.max_context = None
    assert offer_of(endless).max_tokens == MOST_TOKENS


def test_a_prompt_without_room_is_refused_with_numbers() -> None:
    error = refusal(ROUTE, prompt="z" * 600)
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "prompt")
    assert "context is 512 tokens" in error.message
    assert "600 tokens" in error.message
    assert "511 tokens or fewer" in error.message
    assert refusal(ROUTE, prompt="z" * 512).code == "context_length_exceeded"
    ROUTE.read({"prompt": "z" * 511})


def test_another_model_does_not_exist() -> None:
    error = refusal(ROUTE, **BODY, model="gpt-4")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    ROUTE.read({**BODY, "model": "tiny"})


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("aborted", 503)])
def test_an_answer_that_failed_is_no_answer(reason: str, status: int) -> None:
    ask = ROUTE.read(BODY)
    (answer,) = generations(talker(), PROMPT, max_new_tokens=2)
    answer.finish_reason, answer.error = reason, "NaN at /home/me"
    with pytest.raises(ApiError) as caught:
        ROUTE.reply(ask, "r", 0, "").whole([answer])
    assert caught.value.status == status
    assert "/home/me" not in caught.value.message
