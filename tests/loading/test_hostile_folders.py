"""Folders with damage of every kind: refused, with the name of the file or the weight."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import Architecture

import forerun as fr
from forerun.base.errors import ForerunError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Change = Callable[[Path], Any]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = Architecture("llama", "", {"intermediate_size": 64}, dtype=torch.float32).build()
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def config(**values: Any) -> Change:
    def change(folder: Path) -> None:
        about = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**about, **values}))

    return change


def text(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def header(old: bytes, new: bytes) -> Change:
    """Other words of the same length in the description that begins a file of weights."""
    assert len(old) == len(new)

    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        assert old in data
        (folder / WEIGHTS).write_bytes(data.replace(old, new, 1))

    return change


def weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def changed(folder: Path) -> None:
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})

    return changed


def instead(name: str, make: Callable[[Path], Any]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def index(content: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps(content))

    return change


def spoil(values: dict[str, Any]) -> dict[str, Any]:
    values["model.norm.weight"][3] = float("nan")
    return values


def without_norm(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "model.norm.weight"}


KINDS: dict[str, tuple[Change, str]] = {
    "cut short": (lambda f: os.truncate(f / WEIGHTS, 5000), r"model\.safetensors is damaged"),
    "empty": (text(WEIGHTS, b""), r"model\.safetensors is damaged"),
    "a header of 2^60": (text(WEIGHTS, (1 << 60).to_bytes(8, "little") + b"{}"), "too large"),
    "wrong offsets": (header(b's":[0,', b's":[9,'), r"model\.safetensors is damaged.*offset"),
    "unknown dtype": (header(b'"F32"', b'"F99"'), r"model\.safetensors is damaged.*F99"),
    "huge shape": (header(b'"shape":[32]', b'"shape":[99]'), r"model\.safetensors is damaged"),
    "NaN": (weights(spoil), r"model\.norm\.weight holds NaN"),
    "missing weight": (weights(without_norm), r"not in its files \(1: model\.norm\.weight\)"),
    "a folder for weights": (instead(WEIGHTS, Path.mkdir), r"model\.safetensors is damaged"),
    "a pipe for weights": (instead(WEIGHTS, os.mkfifo), r"model\.safetensors is damaged"),
    "a link to itself": (
        instead(WEIGHTS, lambda file: file.symlink_to(file)),
        r"model\.safetensors is damaged",
    ),
    "a folder for config": (instead("config.json", Path.mkdir), r"config\.json is damaged"),
    "config links to itself": (
        instead("config.json", lambda file: file.symlink_to(file)),
        r"config\.json is damaged",
    ),
    "config is null": (text("config.json", b"null"), r"config\.json is damaged.*no object"),
    "config is deep": (text("config.json", b"[" * 200_000), r"config\.json is damaged"),
    "config is binary": (text("config.json", b"\xff\xfe"), r"config\.json is damaged"),
    "a number as text": (config(hidden_size="32"), "hidden_size"),
    "no heads": (config(num_attention_heads=0), "damaged"),
    "no such dtype": (config(dtype="float99"), "float99"),
    "a module for a dtype": (config(dtype="nn"), "The loader failed"),
    "no such activation": (config(hidden_act="boom"), "boom"),
    "ends with words": (config(eos_token_id="end"), r"config\.json is damaged: eos_token_id"),
    "no layers": (config(num_hidden_layers=0), r"layers that config\.json leaves out"),
    "fewer layers": (config(num_hidden_layers=1), r"leaves out \(9: model\.layers\.1\."),
    "more layers": (config(num_hidden_layers=9), r"num_hidden_layers is 9; its files have 2"),
    "endless layers": (config(num_hidden_layers=10**9), "its files have 2"),
    "other few bits": (config(quantization_config=3), "The loader failed"),
    "code": (
        config(model_type="evil", auto_map={"AutoConfig": "evil.X"}),
        "brings code, which is not run unasked.*trust_remote_code",
    ),
    "generation is a list": (
        text("generation_config.json", b"[]"),
        r"generation_config\.json is damaged",
    ),
    "generation ends oddly": (
        text("generation_config.json", b'{"eos_token_id": {"a": 1}}'),
        r"generation_config\.json is damaged: eos_token_id",
    ),
    "index of itself": (index({"weight_map": {"a": INDEX}}), r"index\.json is damaged: a is in"),
    "index leads out": (index({"weight_map": {"a": "../x"}}), r"index\.json is damaged: a is in"),
    "index of a number": (index({"weight_map": {"a": 5}}), r"index\.json is damaged: a is in 5"),
    "index of nothing": (index({}), r"index\.json is damaged: it has no object weight_map"),
    "index is a list": (index([]), r"index\.json is damaged: it holds a list"),
    "pickled code": (
        instead(WEIGHTS, lambda file: file.with_name("pytorch_model.bin").write_bytes(b"cos\n")),
        "The loader failed",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_told_by_name(kind: str, saved: Path) -> None:
    change, told = KINDS[kind]
    change(saved)
    with pytest.raises(ForerunError, match=told) as caught:
        fr.load(str(saved), device="cpu")
    assert str(saved) in str(caught.value)


def test_what_the_loader_does_not_read_may_be_damaged(saved: Path) -> None:
    """Such as the index of other files that were never downloaded."""
    (saved / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "none.bin"}}')
    (saved / "consolidated.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert fr.load(str(saved), device="cpu", lean=False).vocab_size
