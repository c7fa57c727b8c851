"""Decoding token by token gives what decoding all at once gives."""

from __future__ import annotations

from typing import Any

import pytest
from reciting import CORPUS, END, TEXT, byte_tokenizer, token_ids
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from forerun.engine.text import TextStream


def metaspace_tokenizer() -> Any:
    """As Llama 2 and Gemma have it: spaces belong to words, unknown characters become bytes."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=450, special_tokens=["<unk>", END, *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token=END)


def all_shown(stream: TextStream, tokens: list[int]) -> tuple[str, list[str]]:
    pieces = []
    for token in tokens:
        if stream.push(token):
            break
        pieces.append(stream.release())
    pieces.append(stream.release(final=True))
    return "".join(pieces), pieces


@pytest.mark.parametrize("make", [byte_tokenizer, metaspace_tokenizer])
def test_pieces_join_to_the_whole(make: Any) -> None:
    tokenizer = make()
    tokens = tokenizer.encode(TEXT)
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    assert len(tokens) > len(whole) / 2, "some characters need several tokens"
    text, pieces = all_shown(TextStream(tokenizer), tokens)
    assert text == whole
    assert not any("�" in piece for piece in pieces)


def test_special_tokens_are_not_text() -> None:
    end = byte_tokenizer().eos_token_id
    tokens = [end, *token_ids("the 世"), end, end, *token_ids("界 dog"), end]
    assert all_shown(TextStream(byte_tokenizer()), tokens)[0] == "the 世界 dog"


def test_the_earliest_of_several_stop_strings() -> None:
    """Both are completed by the same token; the text ends where the first begins."""
    stream = TextStream(byte_tokenizer(), ["dog", "lazy dog", "nothing"])
    text, _ = all_shown(stream, token_ids("the lazy dog"))
    assert text == "the "
    assert stream.shown == "the "


def test_a_stop_string_that_overlaps_itself() -> None:
    """aab in aaab: the held-back text must not jump over the match."""
    for text, shown in (("aaab!", "a"), ("aaaab!", "aa"), ("aabaab", ""), ("abab aab", "abab ")):
        stream = TextStream(byte_tokenizer(), ["aab"])
        assert all_shown(stream, token_ids(text))[0] == shown


def test_as_much_as_may_be_the_start_of_a_stop_string_is_held_back() -> None:
    """The longest such end counts: xy of xyzz, not y of yx."""
    stream = TextStream(byte_tokenizer(), ["xyzz", "yx"])
    assert all_shown(stream, token_ids("xxyxyz")) == ("xx", ["", "x", "", "x"])
    stream = TextStream(byte_tokenizer(), ["xyzz", "yx"])
    assert all_shown(stream, token_ids("xxyzy")) == ("xxyzy", ["", "x", "", "", "xyz", "y"])


def test_stop_strings_before_min_tokens_are_text() -> None:
    tokens = token_ids("xyxyxy")
    assert len(tokens) == 6
    for min_tokens, shown in ((0, ""), (2, ""), (3, "xy"), (4, "xy"), (5, "xyxy"), (7, "xyxyxy")):
        assert all_shown(TextStream(byte_tokenizer(), ["xy"], min_tokens), tokens)[0] == shown


@pytest.mark.parametrize("make", [byte_tokenizer, metaspace_tokenizer])
def test_of_a_character_that_the_limit_cuts_nothing_is_shown(make: Any) -> None:
    """Wherever the text ends, what is shown is a beginning of it, in whole characters."""
    tokenizer = make()
    tokens = tokenizer.encode(TEXT)
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    num_cut = 0
    for end in range(len(tokens) + 1):
        text, pieces = all_shown(TextStream(tokenizer), tokens[:end])
        decoded = tokenizer.decode(tokens[:end], skip_special_tokens=True)
        num_cut += decoded.endswith("�")
        assert text == decoded.rstrip("�")
        assert whole.startswith(text)
        assert "".join(pieces) == text
    assert num_cut > 3 or make is metaspace_tokenizer  # which has a token for each of these


def test_bytes_that_are_no_character_are_shown_as_such_within_a_text() -> None:
    half = token_ids("世")[:1]
    text, _ = all_shown(TextStream(byte_tokenizer()), [*token_ids("a"), *half, *token_ids("b")])
    assert text == "a�b"


def test_nothing_at_all() -> None:
    stream = TextStream(byte_tokenizer(), ["a"])
    assert stream.release() == ""
    assert stream.release(final=True) == ""
