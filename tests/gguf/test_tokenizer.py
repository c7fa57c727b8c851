"""Tokenizers of GGUF files against what their vocabularies mean."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from forerun.base.errors import InputError, UnsupportedError
from forerun.gguf.file import GgufFile, Tensor
from forerun.gguf.tokenizer import SPACE, tokenizer_of

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [*"▁abcdé", "ab", "bc", "▁a", "abc", "▁ab", "cc", "▁▁", "d▁", "cab", "abcab", "▁abc", "dd"]


def embedding_of(num_tokens: int) -> dict[str, Tensor]:
    name = "token_embd.weight"
    return {name: Tensor(name, (num_tokens, 8), Kind.F32, Path("f.gguf"), 0)}


def pieces_file(**fields: Any) -> GgufFile:
    """A SentencePiece vocabulary whose scores are in no order of length."""
    generator = random.Random(0)
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn>", "  \n", *BYTES, *PIECES]
    kinds = [3, 3, 3, 2, 3, 4, *[6] * 256, *[1] * len(PIECES)]
    scores = [0.0] * (6 + 256) + [-float(score) for score in range(len(PIECES))]
    tail = scores[-len(PIECES) + 6 :]
    generator.shuffle(tail)
    scores[-len(PIECES) + 6 :] = tail
    roles = {"padding": 0, "eos": 1, "bos": 2, "unknown": 3}
    return GgufFile(
        Path("f.gguf"),
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": kinds,
            **{f"tokenizer.ggml.{role}_token_id": index for role, index in roles.items()},
            **{f"tokenizer.ggml.{name}": value for name, value in fields.items()},
        },
        embedding_of(len(tokens)),
    )


def by_hand(file: GgufFile, text: str) -> list[str]:
    """SentencePiece as it is described: join the two neighbours that make the best piece, the
    leftmost first, until no two make one; what is left and no piece is spelt in bytes."""
    kinds = file.fields["tokenizer.ggml.token_type"]
    scored = zip(
        file.fields["tokenizer.ggml.tokens"],
        file.fields["tokenizer.ggml.scores"],
        kinds,
        strict=True,
    )
    scores = {token: score for token, score, kind in scored if kind == 1}
    parts = list(text.replace(" ", SPACE))
    while True:
        pairs = [
            (-scores[left + right], at)
            for at, (left, right) in enumerate(pairwise(parts))
            if left + right in scores
        ]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    spelt: list[str] = []
    for part in parts:
        spelt += [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]
    return spelt


def test_pieces_are_joined_as_sentencepiece_does() -> None:
    file = pieces_file(add_space_prefix=False)
    tokenizer = tokenizer_of(file, 64)
    generator = random.Random(1)
    for _ in range(300):
        text = "".join(generator.choice("abcdé z東 ") for _ in range(generator.randint(1, 14)))
        tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
        assert tokens == ["<bos>", *by_hand(file, text)]
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_a_space_before_the_text() -> None:
    tokenizer = tokenizer_of(pieces_file(add_bos_token=False), 64)
    assert tokenizer.encode("ab") == tokenizer_of(
        pieces_file(add_bos_token=False, add_space_prefix=False), 64
    ).encode(" ab")
    assert tokenizer.decode(tokenizer.encode("ab c")) == "ab c"


def test_special_tokens_are_found_in_a_text() -> None:
    tokenizer = tokenizer_of(pieces_file(add_space_prefix=False, add_eos_token=True), 64)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("a<turn>b  \nc"))
    assert tokens == ["<bos>", "a", "<turn>", "b", "  \n", "c", "<eos>"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a", "b")) == [
        "<bos>", "a", "<eos>", "<bos>", "b", "<eos>"
    ]  # fmt: skip
    assert tokenizer.encode("a", add_special_tokens=False) == [tokenizer.convert_tokens_to_ids("a")]
    assert tokenizer.decode([2, 4, 1], skip_special_tokens=True) == ""
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<pad>", "<unk>")


def words_of(pre: str, text: str) -> list[str]:
    """How a text is split before bytes are merged."""
    file = GgufFile(
        Path("f.gguf"),
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": ["a"],
            "tokenizer.ggml.token_type": [1],
            "tokenizer.ggml.merges": [],
        },
        embedding_of(1),
    )
    core = tokenizer_of(file, 64).backend_tokenizer
    return [
        word.replace("Ġ", " ").replace("Ċ", "\n")
        for word, _ in core.pre_tokenizer.pre_tokenize_str(text)
    ]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["It", "'s", " 12345", " (", "fox", ").", "\n\n", " Go"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " (", "fox", ").", "\n\n", " Go"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " (", "fox", ").\n\n", " Go"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " (", "fox", ").\n\n", " Go"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", "5", " (", "fox", ").\n\n", " Go"]),
    ],
)
def test_words_are_split_as_each_model_does(pre: str, expected: list[str]) -> None:
    assert words_of(pre, "It's 12345 (fox).\n\n Go") == expected


def test_the_same_splits_by_other_names() -> None:
    assert words_of("llama3", "a 1234") == words_of("llama-bpe", "a 1234")
    assert words_of("deepseek-r1-qwen", "a 1234") == words_of("qwen2", "a 1234")


def test_tokenizers_that_are_not_known_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"llama-bpe.*pre-tokenizer 'viking'.*original"):
        words_of("viking", "")
    file = GgufFile(
        Path("f.gguf"), {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": []}, {}
    )
    with pytest.raises(UnsupportedError, match="'rwkv'"):
        tokenizer_of(file, 64)


def test_a_file_without_a_vocabulary_has_none() -> None:
    assert tokenizer_of(GgufFile(Path("f.gguf"), {}, {}), 64) is None


def test_the_roles_of_tokens() -> None:
    file = pieces_file(eos_token_id=0xFFFFFFFF, bos_token_id=-1, padding_token_id=999)
    assert [file.token_id(role) for role in ("eos", "bos", "padding", "unknown", "eot")] == [
        None, None, None, 3, None
    ]  # fmt: skip
    tokenizer = tokenizer_of(file, 64)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (None, None, None)
    assert tokenizer.unk_token == "<unk>"


@pytest.mark.parametrize("index", [-2, 999, 1 << 63, 1.0, "2"])
@pytest.mark.parametrize("role", ["eos", "bos", "eot", "unknown"])
def test_a_role_of_no_token_is_refused(role: str, index: Any) -> None:
    with pytest.raises(InputError, match=f"{role}_token_id {index!r} for 280 tokens"):
        pieces_file(**{f"{role}_token_id": index}).token_id(role)


def test_tokens_without_text_get_the_names_that_llama_cpp_gives_them() -> None:
    file = pieces_file()
    file.fields["tokenizer.ggml.tokens"][-2:] = ["", ""]
    tokens = tokenizer_of(file, 64).convert_ids_to_tokens([278, 279])
    assert tokens == ["[EMPTY_278]", "[EMPTY_279]"]
