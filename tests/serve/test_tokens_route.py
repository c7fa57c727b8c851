"""Texts to tokens and back, single tokens as words, and the list of models."""

from __future__ import annotations

from copy import deepcopy
from types import MappingProxyType
from typing import Any

import pytest
from reciting import TEXT, byte_tokenizer, token_ids
from serving import run
from talking import CREATED, HERMES, MESSAGES, offer_of, talker, talking

from forerun.engine.results import TokenLogprob
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.replies import Words
from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.routes.queries import Detokenize, Tokenize

TOKENIZE, DETOKENIZE = Tokenize(offer_of()), Detokenize(offer_of())


def test_a_text_goes_there_and_back() -> None:
    told = TOKENIZE.answer({"prompt": TEXT, "return_token_strs": True})
    assert told["tokens"] == token_ids(TEXT)
    assert told["count"] == len(token_ids(TEXT))
    assert told["max_model_len"] == 512
    assert len(told["token_strs"]) == told["count"]
    assert DETOKENIZE.answer({"tokens": told["tokens"]}) == {"prompt": TEXT}
    assert TOKENIZE.answer({"prompt": ""})["tokens"] == []


def test_texts_of_tokens_are_made_only_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "text", None)
    assert TOKENIZE.answer({"prompt": TEXT})["token_strs"] is None


def test_special_tokens_where_the_tokenizer_adds_them() -> None:
    from tokenizers.processors import TemplateProcessing

    offer = offer_of()
    tokenizer = byte_tokenizer(331)
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.eos_token} $A", special_tokens=[end]
    )
    target = type(talker())()
    target.tokenizer = tokenizer
    route = Tokenize(offer_of(target))
    bare = route.answer({"prompt": "a", "add_special_tokens": False})["tokens"]
    assert route.answer({"prompt": "a"})["tokens"] == [end[1], *bare]
    assert offer.tokenizer is not tokenizer


def test_messages_are_worded_as_in_a_chat() -> None:
    told = TOKENIZE.answer({"messages": MESSAGES})
    assert told["tokens"] == Chat(offer_of()).read({"messages": MESSAGES}).prompts[0]
    bare = TOKENIZE.answer({"messages": MESSAGES, "add_generation_prompt": False})
    assert talker().tokenizer.decode(bare["tokens"]) == "<user>the quick brown fox\n"
    tools = [{"type": "function", "function": {"name": "f"}}]
    route = Tokenize(offer_of(talker(HERMES)))
    shown = route.answer({"messages": MESSAGES, "tools": tools})
    assert '"name": "f"' in talker().tokenizer.decode(shown["tokens"])


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "a", "messages": MESSAGES}, "prompt"),
        (TOKENIZE, {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        (TOKENIZE, {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        (TOKENIZE, {"prompt": "a", "colour": 1}, "colour"),
        (TOKENIZE, {"prompt": "a", "model": "other"}, "model"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": [330]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    route: Any, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        route.answer(body)
    assert caught.value.param == param


def test_tokens_have_bytes_that_add_up() -> None:
    words = Words(byte_tokenizer())
    tokens = token_ids(TEXT)
    assert b"".join(words.bytes(token) for token in tokens).decode() == TEXT
    assert words.text(token_ids("the")[0]) == "the"
    (first, *_) = token_ids("🦊")
    assert words.text(first).startswith("bytes:\\xf0")
    assert words.text(byte_tokenizer().eos_token_id) == "<end>"


def test_bytes_of_a_sentencepiece_vocabulary() -> None:
    class Pieces:
        added_tokens_decoder = MappingProxyType({})

        def convert_ids_to_tokens(self, token: int) -> str | None:
            return {0: "▁dog", 1: "<0xF0>", 2: "s"}.get(token)

    words = Words(Pieces())
    assert [words.bytes(token) for token in range(4)] == [b" dog", b"\xf0", b"s", b""]


def test_added_tokens_are_text() -> None:
    tokenizer = deepcopy(byte_tokenizer())
    tokenizer.add_tokens(["<é>"])
    assert Words(tokenizer).text(len(tokenizer) - 1) == "<é>"


def test_of_two_tokens_with_one_text_the_likelier_is_told() -> None:
    class Twins:
        def convert_ids_to_tokens(self, token: int) -> str:
            return "a"

    each = TokenLogprob(1, -3.0, ((0, -1.0), (1, -3.0)))
    told = Words(Twins()).completion_logprobs([each], [0], 2)
    assert told["top_logprobs"] == [{"a": -1.0}]
    assert told["token_logprobs"] == [-3.0]
    impossible = TokenLogprob(1, float("-inf"))
    assert Words(Twins()).chat_logprobs([impossible])[0]["logprob"] == -9999.0


def test_models_are_listed_and_found() -> None:
    async def work() -> None:
        async with talking() as ask:
            listing = (await ask("/v1/models", method="GET")).json()
            one = await ask("/v1/models/tiny", method="GET")
            other = await ask("/v1/models/some/other", method="GET")
            tokens = await ask("/tokenize", {"prompt": "a"})
        assert listing["object"] == "list"
        assert listing["data"] == [one.json()]
        assert (one.json()["id"], one.json()["created"]) == ("tiny", CREATED)
        assert one.json()["speculation"]["drafters"] == ["ngram", "none"]
        assert other.status == 404
        assert other.json()["error"]["code"] == "model_not_found"
        assert tokens.json()["tokens"] == token_ids("a")

    run(work())
