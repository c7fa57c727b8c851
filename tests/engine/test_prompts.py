"""Text, chats and ids become the same prompt."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
from reciting import END, TEXT, Reciter, token_ids

import forerun as fr
from forerun import Sampling
from forerun.engine.prompts import encode, is_one

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
CHAT = [{"role": "system", "content": "the dog"}, {"role": "user", "content": "hello 🦊"}]


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
        ([], True),
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
    alone = fr.generate(chatty(), CHAT, **how)
    mixed = fr.generate(chatty(), [CHAT, "the dog", token_ids("the dog")], **how)
    assert alone.prompt_tokens == mixed[0].prompt_tokens == wanted
    assert alone.tokens == mixed[0].tokens
    assert mixed[1].prompt_tokens == mixed[2].prompt_tokens


def test_a_chat_without_a_template_is_an_error() -> None:
    with pytest.raises(ValueError, match="chat_template"):
        fr.generate(Reciter(TEXT), CHAT)


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
        plain = fr.generate(model, "the", sampling=sampling, **how)
        drafter = fr.drafters.Model(model)
        found = fr.generate(model, "the", drafter=drafter, sampling=sampling, **how)
        assert found.tokens == plain.tokens
        assert plain.finish_reason == "error", "this model knows no other way"
        assert plain.text is not None
        assert plain.error is not None
        assert "no token is possible" in plain.error
        assert word not in plain.text


def test_the_engine_needs_neither_torch_nor_transformers() -> None:
    code = """
import sys
import forerun as fr
from forerun.models import TableModel
target = TableModel.random(5, 1, seed=0)
fr.generate(target, [1], drafter=fr.drafters.NGram(), sampling=fr.Sampling(top_p=0.9), logprobs=1)
list(fr.stream(target, [1], drafter=fr.drafters.Model(target), rule="block", max_new_tokens=9))
heavy = {"torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
