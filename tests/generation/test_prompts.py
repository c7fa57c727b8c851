"""Text, chats and ids become the same prompt."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from reciting import END, TEXT, Reciter, token_ids

import forerun as fr
from forerun import Sampling
from forerun.generation.prompts import encode, is_one

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
CHAT = [{"role": "system", "content": "the dog"}, {"role": "user", "content": "hello 🦊"}]


@pytest.mark.parametrize("call", [fr.generate, fr.stream])
@pytest.mark.parametrize("model", [Reciter(TEXT), lambda ids: [0.5, 0.5]])
def test_a_prompt_before_the_model_is_told(call: Any, model: Any) -> None:
    with pytest.raises(fr.InputError, match=r"swapped\. Received 'the dog', .* stands first"):
        call("the dog", model)


def chatty() -> Reciter:
    model = Reciter(TEXT)
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.chat_template = TEMPLATE
    return model


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("text", True),
        ("", True),
        ([1, 2], True),
        ((1,), True),
        ([], False),
        (CHAT, True),
        (tuple(CHAT), True),
        (["a"], False),
        ([[1, 2]], False),
        ([[1], "b", CHAT], False),
        ([CHAT], False),
    ],
)
def test_one_prompt_or_many(prompt: Any, wanted: bool) -> None:
    assert is_one(prompt) is wanted


def test_a_chat_goes_through_the_template() -> None:
    wanted = token_ids("system: the dog\nuser: hello 🦊\nassistant:")
    assert encode(chatty(), CHAT) == wanted
    how: dict[str, Any] = {"max_new_tokens": 4, "sampling": Sampling(seed=1)}
    alone = fr.generate(chatty(), CHAT, drafter=None, **how)
    mixed = fr.generate(chatty(), [CHAT, "the dog", token_ids("the dog")], drafter=None, **how)
    assert alone.prompt_tokens == mixed[0].prompt_tokens == wanted
    assert alone.tokens == mixed[0].tokens
    assert mixed[1].prompt_tokens == mixed[2].prompt_tokens


def test_a_chat_without_a_template_is_an_error() -> None:
    message = (
        "no chat template. Received a chat for reciter. Pass a string.*tokenizer.chat_template"
    )
    with pytest.raises(fr.InputError, match=message):
        fr.generate(Reciter(TEXT), CHAT)


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ([{"role": "user"}], r"A message has no content. Received {'role': 'user'}. Write {'role'"),
        ([{"role": "user", "content": None}], "A message has no content"),
        ([*CHAT, {"content": "hi"}], "A message has no role. Received {'content': 'hi'}"),
        ([{"text": "hi"}], "A message has no role and no content"),
        ([*CHAT, "hi"], "holds something that is no message. Received 'hi'"),
        ([{"role": "user", "content": 5}], "content of a message is no text. Received 5. Write"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "is no text. Received .{'type'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "is no text"),
    ],
)
def test_messages_that_lack_something(chat: Any, message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        fr.generate(chatty(), chat)


@pytest.mark.parametrize("field", ["role", "content"])
def test_half_of_a_character_in_a_chat_is_refused(field: str) -> None:
    message = r"The chat holds half of a character, .*Received '[^']*a\\ud83db"
    with pytest.raises(fr.InputError, match=message):
        fr.generate(chatty(), [{"role": "user", "content": "hi"} | {field: "a\ud83db"}])


def test_parts_of_text_are_put_together() -> None:
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "🦊"}]
    assert encode(chatty(), [CHAT[0], {"role": "user", "content": parts}]) == encode(chatty(), CHAT)


def test_what_a_template_refuses_is_told_in_its_words() -> None:
    model = chatty()
    model.tokenizer.chat_template = "{{ raise_exception('roles must alternate.') }}"
    message = r"template refuses these messages: roles must alternate\. Received a chat for reciter"
    with pytest.raises(fr.InputError, match=message):
        fr.generate(model, CHAT)
    model.tokenizer.chat_template = "{% if %}"
    with pytest.raises(fr.InputError, match=r"template of this model is broken.*Pass a string"):
        fr.generate(model, CHAT)


def test_a_message_that_calls_a_tool_needs_no_content() -> None:
    model = chatty()
    model.tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    chat = [*CHAT, {"role": "assistant", "tool_calls": []}]
    assert encode(model, chat) == token_ids("systemuserassistant")


@pytest.mark.parametrize("kind", [None, "np", "pt"])
def test_what_a_tokenizer_returned_is_a_prompt(kind: str | None) -> None:
    """One text as lists is one prompt; a batch is several, and its padding is left out."""
    model = Reciter(TEXT)
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.pad_token = END
    how: dict[str, Any] = {"max_new_tokens": 3}
    expected = [token_ids("the dog"), token_ids("hello")]
    batch = model.tokenizer(["the dog", "hello"], padding=True, return_tensors=kind)
    found = fr.generate(model, batch, **how)
    assert [each.prompt_tokens for each in found] == expected
    one = model.tokenizer("the dog", return_tensors=kind)
    alone = fr.generate(model, one, **how)
    alone = alone if kind is None else alone[0]  # a tensor of one row is a batch of one
    assert alone.prompt_tokens == expected[0]
    mixed = fr.generate(model, [one, "hello"], **how)
    assert [each.prompt_tokens for each in mixed] == expected
    unmasked = fr.generate(model, {"input_ids": expected[0]}, **how)
    assert unmasked.prompt_tokens == expected[0]


def test_no_prompts_get_no_answers() -> None:
    model = Reciter(TEXT)
    assert fr.generate(model, []) == []
    assert fr.generate(model, (), sampling=[], max_new_tokens=[], resume=[]) == []
    stream = fr.stream(model, [])
    assert list(stream) == []
    assert stream.results() == []


def test_special_tokens_of_a_template_are_not_added_twice() -> None:
    model = chatty()
    model.tokenizer.chat_template = END + TEMPLATE
    assert encode(model, CHAT)[0] == model.end
    assert encode(model, CHAT).count(model.end) == 1


def test_bad_words_as_text() -> None:
    """With and without a space before them, and only as they are usually written."""
    model = Reciter(TEXT)
    how: dict[str, Any] = {"max_new_tokens": 30, "stop_tokens": [model.end], "errors": "return"}
    for word in ("dog", "answers 世界"):
        sampling = Sampling(seed=1, bad_words=[word])
        plain = fr.generate(model, "the", drafter=None, sampling=sampling, **how)
        drafter = fr.drafters.Model(model)
        found = fr.generate(model, "the", drafter=drafter, sampling=sampling, **how)
        assert found.tokens == plain.tokens
        assert plain.finish_reason == "error", "this model knows no other way"
        assert plain.text is not None
        assert plain.error is not None
        assert "no token is possible" in plain.error
        assert word not in plain.text
