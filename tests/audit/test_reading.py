"""Bins, features, and answers in every form that servers give them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from forerun.audit.bins import TAIL, Bins
from forerun.audit.dialects import Dialect, read
from forerun.audit.features import NAMES, copied, features
from forerun.audit.questions import Question, RefusedError
from forerun.audit.wire import DONE, EndpointError, Raw

FULL = Bins.of({" a": math.log(0.5), " b": math.log(0.3), " c": math.log(0.15)})


def test_what_is_not_listed_is_the_tail() -> None:
    assert FULL.keys == (" a", " b", " c", TAIL)
    assert FULL.chances.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05])
    assert FULL.index(" zebra") == 3
    assert FULL.most[3] > FULL.chances[3]


def test_tokens_that_cannot_be_told_apart_are_in_the_tail() -> None:
    law = Bins.of({" a": math.log(0.5), "\ufffd": math.log(0.4)})
    assert law.keys == (" a", TAIL)
    assert law.chance("\ufffd") == pytest.approx(0.5)


def test_chances_above_1_are_scaled() -> None:
    assert Bins.of({" a": 0.0, " b": -8.0}).chances.sum() == pytest.approx(1)


def test_copies_of_the_longest_match() -> None:
    text = [" a", " b", " c", " x", " b", " d", " a", " b"]
    assert copied(text, 8) == " c"  # after " a b", not the later " b"
    assert copied(text, 1) is None


def test_features_do_not_look_at_the_token_itself() -> None:
    one, other = [" a", " b", " a", " b"], [" a", " b", " a", " c"]
    assert np.array_equal(features(FULL, one, 3, " a"), features(FULL, other, 3, " a"))
    table = features(FULL, one, 3, " b")
    told = {name for name, column in zip(NAMES, table.T, strict=True) if column[1] == 1}
    assert "the token that an n-gram would copy" in told


def completion(**logprobs: Any) -> dict[str, Any]:
    choice = {"text": " a b", "finish_reason": "length", "logprobs": logprobs or None}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"choices": [choice], "usage": usage, "model": "m"}


def test_an_answer_of_completions() -> None:
    lists = {"tokens": [" a", " b"], "token_logprobs": [-0.1, -0.2]}
    answer = read(Raw(200, completion(**lists, top_logprobs=[{" a": -0.1}, None])))
    tokens = answer.choices[0].tokens
    assert tokens is not None
    assert [token.text for token in tokens] == [" a", " b"]
    assert tokens[0].top == {" a": -0.1}
    assert (answer.num_prompt_tokens, answer.num_tokens) == (3, 2)


def test_an_answer_of_llama_cpp_has_ids_in_the_form_of_chats() -> None:
    other = {"token": " c", "logprob": -1.0}
    content = [{"id": 7, "token": " a", "logprob": -0.1, "top_logprobs": [other, other]}]
    answer = read(Raw(200, completion(content=content)))
    tokens = answer.choices[0].tokens
    assert tokens is not None
    assert tokens[0].id == 7
    assert tokens[0].top[" c"] == pytest.approx(-1.0 + math.log(2))  # alike: added up


def test_a_stream_is_put_together() -> None:
    part = {"index": 0, "finish_reason": None}
    events = (
        (0.1, {"model": "m", "choices": [part | {"delta": {"role": "assistant"}}]}),
        (0.2, {"model": "m", "choices": [part | {"delta": {"content": " a"}}]}),
        (0.3, {"choices": [{"index": 0, "delta": {"content": " b"}, "finish_reason": "stop"}]}),
        (0.3, {"choices": [], "usage": {"completion_tokens": 2}}),
        (0.3, DONE),
    )
    answer = read(Raw(200, None, {}, events))
    assert answer.text == " a b"
    assert answer.choices[0].reason == "stop"
    assert answer.num_tokens == 2
    assert [chunk.num_characters for chunk in answer.chunks] == [2, 2]


@pytest.mark.parametrize(
    "body",
    [
        "<html>It works!</html>",
        {},
        {"choices": []},
        {"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [0.5]}}]},
        {"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": ["?"]}}]},
        [1, 2],
    ],
)
def test_nonsense_is_said_to_be_nonsense(body: Any) -> None:
    with pytest.raises(EndpointError, match="cannot be read"):
        read(Raw(200, body))


def test_refusals_and_failures_are_told_apart() -> None:
    with pytest.raises(RefusedError, match="no such field"):
        read(Raw(400, {"error": {"message": "no such field"}}))
    with pytest.raises(EndpointError, match="failed"):
        read(Raw(500, "oops"))


def test_questions_in_the_words_of_both_routes() -> None:
    question = Question("p", 4, (" a",), options={"seed": 1}, n=2, stop=("x",), is_streamed=True)
    plain = Dialect("completions", model="m").call(question)
    assert plain.path == "/v1/completions"
    assert plain.body == {
        "max_tokens": 4, "model": "m", "prompt": "p a", "seed": 1, "n": 2, "stop": ["x"],
        "stream": True, "stream_options": {"include_usage": True}, "logprobs": 20,
    }  # fmt: skip
    chat = Dialect("chat", prefill={"continue_final_message": True}).call(question).body
    assert chat is not None
    assert chat["messages"][-1] == {"role": "assistant", "content": " a"}
    assert chat["continue_final_message"] is True
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 20)
