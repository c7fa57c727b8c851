"""Damaged GGUF files are refused at once: none hangs, and none is read as another model."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import BYTE_PAIRS, write
from tiny_models import VOCAB_SIZE, Architecture

import forerun as fr
from forerun.base.errors import InputError
from forerun.gguf.config import config_of
from forerun.gguf.file import read_gguf
from forerun.loading.bundled import local_copy
from forerun.loading.cache import cache_folder

Q = "blk.0.attn_q.weight"
POSITIVE = ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"]
TOKENS = BYTE_PAIRS["tokenizer.ggml.tokens"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file without damage."""
    path = tmp_path / "tiny.gguf"
    write(path, Architecture("llama", "", {"num_hidden_layers": 1}).build().float())
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(value: float) -> bytes:
    kind, code = (6, "f") if isinstance(value, float) else (5, "i") if value < 0 else (4, "I")
    return struct.pack(f"<I{code}", kind, value)


def rewrite(path: Path, fields: dict[str, Any] | None = None, extra: Any = ()) -> None:
    """The same file with other fields, and with `extra` tensors: name, shape and offset."""
    changes = fields or {}
    file = read_gguf(path)
    header = b"".join(
        text(name) + encoded(changes.get(name, value)) for name, value in file.fields.items()
    )
    added = [name for name in changes if name not in file.fields]
    header += b"".join(text(name) + encoded(changes[name]) for name in added)
    data, places = b"", []
    for name, tensor in file.tensors.items():
        places.append((name, tensor.shape, len(data)))
        data += contents_of(tensor) + bytes(-tensor.num_bytes % 32)
    places += [(name, shape, len(data) if at is None else at) for name, shape, at in extra]
    for name, shape, at in places:
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        header += text(name) + sizes + struct.pack("<IQ", 0, at)
    counts = struct.pack("<IQQ", 3, len(places), len(file.fields) + len(added))
    header = b"GGUF" + counts + header
    path.write_bytes(header + bytes(-len(header) % 32) + data + bytes(1 << 14))


def contents_of(tensor: Any) -> bytes:
    whole: bytes = tensor.path.read_bytes()
    return whole[tensor.begin : tensor.begin + tensor.num_bytes]


def encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", 9, 5, len(value)) + value.astype("<i4").tobytes()
    return number(value)


def test_what_is_rewritten_is_read(path: Path) -> None:
    rewrite(path)
    assert local_copy(str(path)) is not None


def test_one_bit_of_the_number_of_layers(path: Path) -> None:
    rewrite(path, {"llama.block_count": 1 + (1 << 20)})
    with pytest.raises(InputError, match="block_count 1,048,577 with tensors of 1 layers"):
        config_of(read_gguf(path))


@pytest.mark.parametrize(
    ("num_tensors", "num_fields", "rest", "told"),
    [
        (1, 1 << 40, b"", "at least 15,393,162,788,913 bytes"),
        (1 << 40, 0, b"", "at least 27,487,790,694,424 bytes"),
        (0, 1000, b"", "the name '' in"),
        (1000, 0, b"", "the name '' in"),
        (1, 0, text("a") + struct.pack("<I", (1 << 32) - 1), "4,294,967,295 axes of 'a'"),
        (0, 1, text("a") + struct.pack("<IIQ", 9, 8, 1 << 40), "at least 8,796,093,022,"),
    ],
)
def test_huge_numbers_before_zeros_are_refused_at_once(
    num_tensors: int, num_fields: int, rest: bytes, told: str, tmp_path: Path
) -> None:
    """As in a file whose space was reserved before it was downloaded."""
    path = tmp_path / "zeros.gguf"
    counts = struct.pack("<IQQ", 3, num_tensors, num_fields)
    path.write_bytes(b"GGUF" + counts + rest + bytes(1 << 20))
    with pytest.raises(InputError, match=told):
        read_gguf(path)


def test_numbers_stay_in_the_file_until_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    field = text("a") + struct.pack("<IIQ", 9, 0, 1 << 20)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field + bytes(1 << 20))
    assert isinstance(read_gguf(path).fields["a"], np.ndarray)


@pytest.mark.parametrize(
    ("name", "at", "told"),
    [
        (Q, None, f"the name {Q!r} twice"),
        ("", None, "the name '' in"),
        ("foo.0.attn_q.weight", None, "is foo.0.attn_q.weight: .* where none was expected"),
        ("blk.00.attn_q.weight", None, "is blk.00.attn_q.weight: .* where none was expected"),
        ("lm_head.weight", None, "two tensors for lm_head.weight"),
        ("other.weight", 4, "'other.weight' at 4, no multiple of 32"),
        ("other.weight", 32, "'other.weight' inside 'token_embd.weight'"),
    ],
)
def test_a_tensor_takes_no_other_ones_place(
    name: str, at: int | None, told: str, path: Path
) -> None:
    rewrite(path, extra=[(name, (32, 32), at)])
    with pytest.raises(InputError, match=told):
        local_copy(str(path))


def test_a_field_that_is_there_twice(path: Path) -> None:
    eos = b"tokenizer.ggml.eos_token_id"
    path.write_bytes(path.read_bytes().replace(eos.replace(b"eos", b"bos"), eos))
    with pytest.raises(InputError, match=r"the name 'tokenizer\.ggml\.eos_token_id' twice"):
        read_gguf(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["token_embd.weight", Q, "blk.0.ffn_up.weight"])
def test_weights_that_are_not_finite(name: str, value: float, path: Path) -> None:
    tensor = read_gguf(path).tensors[name]
    contents, data = path.read_bytes(), contents_of(tensor)
    damaged = np.frombuffer(data, "<f4").copy()
    damaged[3] = value
    path.write_bytes(contents.replace(data, damaged.tobytes()))
    with pytest.raises(InputError, match=rf"not finite\. Received {name} in .*tiny.gguf"):
        local_copy(str(path))
    assert list(cache_folder().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *product(POSITIVE, [float("nan"), float("inf"), -1.0]),
        *product(POSITIVE[:2], [0.0]),  # which stands for no factor
    ],
)
def test_numbers_that_must_be_positive(name: str, value: float, path: Path) -> None:
    rewrite(path, {f"llama.{name}": value})
    with pytest.raises(InputError, match=f"{name} {value}"):
        config_of(read_gguf(path))


@pytest.mark.parametrize("value", [0, -1, 1.5, "long"])
def test_numbers_that_must_be_counts(value: Any, path: Path) -> None:
    rewrite(path, {"llama.context_length": value})
    with pytest.raises(InputError, match=f"context_length {value!r}"):
        config_of(read_gguf(path))


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (TOKENS[:-5], f"{VOCAB_SIZE - 5} tokens for {VOCAB_SIZE} rows"),
        ([*TOKENS, "more"], f"{VOCAB_SIZE + 1} tokens for {VOCAB_SIZE} rows"),
        ([*TOKENS[:-1], "a"], "2 tokens 'a'"),
        (["a"] * VOCAB_SIZE, f"{VOCAB_SIZE} tokens 'a'"),
    ],
)
def test_tokens_are_those_of_the_embedding(tokens: list[str], told: str, path: Path) -> None:
    kinds = np.ones(len(tokens))
    rewrite(path, {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})
    with pytest.raises(InputError, match=told):
        local_copy(str(path))


def test_a_panic_of_the_tokenizer_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no Exception, so that nobody takes it for one."""
    kind: Any = type("PanicException", (BaseException,), {})

    def raising(error: Any) -> Callable[..., None]:
        def fail(*_: Any) -> None:
            raise error

        return fail

    name = "forerun.gguf.model.tokenizer_of"
    monkeypatch.setattr(name, raising(kind("out of range")))
    with pytest.raises(InputError, match="PanicException: out of range"):
        local_copy(str(path))
    monkeypatch.setattr(name, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        local_copy(str(path))


@pytest.mark.parametrize("letter", ["n", "é", "東"])
def test_a_long_name(letter: str, path: Path) -> None:
    longest = letter * (250 // len(letter.encode()))
    folder = local_copy(str(path.rename(path.with_name(f"{longest}.gguf"))))
    assert folder is not None
    assert folder.name.startswith(letter * 20)
    assert len(os.fsencode(folder.name)) < 100


def test_a_cache_that_cannot_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(path.parent / ("x" * 300)))
    with pytest.raises(InputError, match=r"File name too long.*Set FORERUN_CACHE"):
        fr.load(path, lean=False)
    monkeypatch.setenv("FORERUN_CACHE", "~nobody-here/x")
    assert cache_folder() == Path("~nobody-here/x")
