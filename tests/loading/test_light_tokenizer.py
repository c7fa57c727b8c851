"""The light tokenizer: the same answers as the whole one, which steps in for everything else."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from forerun.loading import light_tokenizer
from forerun.loading.light_tokenizer import NONE, LightTokenizer

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('no') }}"
    "{% endif %}{{ bos_token }}{{ message['role'] }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = [{"role": "system", "content": " be brief "}, {"role": "user", "content": "w1 <b> w2"}]


@pytest.fixture(scope="module")
def whole() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<b>", "<e>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(["the cat sat on the mat"], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<b>", eos_token="<e>")
    made.chat_template = TEMPLATE
    return made


def light_of(whole: Any) -> tuple[LightTokenizer, list[int]]:
    """And a list that grows each time the whole tokenizer is loaded."""
    loaded: list[int] = []

    def load() -> Any:
        loaded.append(1)
        return whole

    kept = light_tokenizer.of(whole)
    assert kept is not NONE
    return LightTokenizer(kept, load), loaded


def test_usual_questions_do_not_load_the_whole(whole: Any) -> None:
    light, loaded = light_of(whole)
    for text in ("the cat", "<b>the mat<e>", "äß 🙂", ""):
        ids = whole.encode(text)
        assert light.encode(text) == ids
        assert light.encode(text, add_special_tokens=False) == ids
        for skip in (True, False):
            options = {"skip_special_tokens": skip}
            assert light.decode(ids, **options) == whole.decode(ids, **options)
    for prompts in (True, False):
        how = {"tokenize": False, "add_generation_prompt": prompts}
        assert light.apply_chat_template(CHAT, **how) == whole.apply_chat_template(CHAT, **how)
    with pytest.raises(Exception, match="no"):
        light.apply_chat_template([{"role": "tool", "content": ""}], tokenize=False)
    assert (light.eos_token_id, light.chat_template) == (1, TEMPLATE)
    assert light.get_chat_template(tools=None) == TEMPLATE
    assert len(light) == len(whole)
    assert light.get_vocab() == whole.get_vocab()
    assert light.added_tokens_decoder == whole.added_tokens_decoder
    pieces = [light.convert_ids_to_tokens(token) for token in range(len(whole))]
    assert pieces == [whole.convert_ids_to_tokens(token) for token in range(len(whole))]
    assert loaded == []


def test_pairs_are_kept_in_the_form_that_is_read_faster(whole: Any) -> None:
    def merges_of(made: Any) -> Any:
        return json.loads(light_tokenizer.of(made).words.tobytes())["model"]["merges"]

    told = json.loads(whole.backend_tokenizer.to_str())["model"]["merges"]
    assert merges_of(whole) == [" ".join(pair) for pair in told]
    assert len(told) > 2


@pytest.mark.parametrize("pair", [("a ", "b"), ("#version", "b")])
def test_pairs_with_a_space_stay_as_they_are(pair: tuple[str, str]) -> None:
    words = json.dumps({"model": {"merges": [["a", "b"], pair]}})
    assert light_tokenizer._quick(words) == words
    assert light_tokenizer._quick('{"model":{"vocab":{}}}') == '{"model":{"vocab":{}}}'


def test_tools_calls_and_their_results_do_not_load_the_whole(whole: Any) -> None:
    whole = copy.deepcopy(whole)
    whole.chat_template = (
        "{{ tools | tojson(indent=2) }}{% for message in messages %}{{ message.role }}"
        "{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}"
        "{{ message.tool_call_id }}{{ message.content }}{% endfor %}"
    )
    light, loaded = light_of(whole)
    tools = [{"type": "function", "function": {"name": "ö<x>", "parameters": {"a": [1, None]}}}]
    for given in (tools, None):
        how: dict[str, Any] = {"tools": given, "tokenize": False}
        text = light.apply_chat_template(light_tokenizer.TOOL_CHAT, **how)
        assert text == whole.apply_chat_template(light_tokenizer.TOOL_CHAT, **how)
    assert loaded == []
    how = {"tools": [len], "tokenize": False}  # a function, which transformers describes or refuses
    with pytest.raises(ValueError, match="Tools"):
        light.apply_chat_template(CHAT, **how)
    assert loaded == [1]


def test_all_else_is_answered_by_the_whole(whole: Any) -> None:
    light, loaded = light_of(whole)
    assert light.encode("the cat", truncation=True, max_length=1) == whole.encode("the cat")[:1]
    assert loaded == [1]
    assert light("the cat").input_ids == whole("the cat").input_ids
    assert light.decode(5) == whole.decode(5)
    assert light.apply_chat_template(CHAT, tokenize=True) == whole.apply_chat_template(CHAT)
    assert isinstance(light, type(whole))
    assert copy.copy(light) is whole
    assert pickle.loads(pickle.dumps(light)).get_vocab() == whole.get_vocab()
    with pytest.raises(AttributeError):
        _ = light.no_such_thing
    assert loaded == [1]


def test_a_changed_tokenizer_is_changed(whole: Any) -> None:
    whole = copy.deepcopy(whole)
    light, _ = light_of(whole)
    light.chat_template = "always this"
    assert whole.chat_template == light.chat_template == "always this"
    assert light.apply_chat_template(CHAT, tokenize=False) == "always this"


@pytest.mark.parametrize(
    "template", ["{{ strftime_now('%d') }}", "{% set n = namespace(a=1) %}{{ n.a }}", "{% bad"]
)
def test_a_template_that_needs_more_is_left_to_the_whole(whole: Any, template: str) -> None:
    other = copy.deepcopy(whole)
    other.chat_template = template
    assert light_tokenizer.of(other) is NONE


def test_a_tokenizer_of_another_kind_is_left_alone(whole: Any) -> None:
    class Other:
        chat_template = None

    assert light_tokenizer.of(Other()) is NONE
    other = copy.deepcopy(whole)
    other.encode = lambda text, **options: [7]
    assert light_tokenizer.of(other) is NONE
