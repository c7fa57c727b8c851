"""Loading by name and wrapping what the caller already has."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from httpx import Request, Response
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB_SIZE, Architecture

from forerun import generate, wrap
from forerun.base.errors import InputError, MissingExtraError
from forerun.loading import bundled, hub
from forerun.loading.load import load
from forerun.models import FunctionModel, HuggingFaceModel, TableModel

MISSING = RepositoryNotFoundError(
    "404", response=Response(404, request=Request("GET", "https://huggingface.co"))
)


def test_missing_libraries_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "forerun.models.huggingface", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r'pip install "forerun\[hf\]"'):
        load("anything")


def test_an_unknown_model_says_what_was_tried() -> None:
    with pytest.raises(InputError, match=r"no such folder, and local_files_only keeps.*nowhere"):
        load("nobody/nowhere", local_files_only=True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ConnectionError(),
            r"hub cannot be reached \(ConnectionError\). Received 'nobody/nowhere'",
        ),
        (HFValidationError(), "have the form owner/name"),
        (MISSING, "has no model of that name"),
    ],
)
def test_what_the_hub_says_is_told_before_torch_is_imported(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name is asked for once, and the loader only where something was downloaded before."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr(sys.modules["forerun.loading.load"], "huggingface_model", None)
    with pytest.raises(InputError, match=reason):
        load("nobody/nowhere", cache_dir=tmp_path)
    (tmp_path / "models--nobody--nowhere").mkdir()
    with pytest.raises(TypeError):  # the loader is called
        load("nobody/nowhere", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "name", ["smollm2-135m", "SmolLM2-135M-Instuct", "x/SmolLM2-135M-Instruct"]
)
def test_a_name_without_its_owner_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "packaged_parts", lambda name: [Path(name)])
    assert hub.without_hub(name) == f" Did you mean {bundled.NAME}?"
    assert hub.without_hub("elsewhere") == f" Installed here: {bundled.NAME}, {bundled.GEMMA}."


def test_a_misspelt_model_is_answered_with_one_that_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundled, "packaged_parts", lambda name: [Path(name)])
    with pytest.raises(InputError, match=rf"Did you mean {bundled.NAME}\?"):
        load("HuggingFaceTB/SmolLM2-135M-Instuct", local_files_only=True)
    monkeypatch.setattr(bundled, "packaged_parts", lambda name: [])
    with pytest.raises(InputError) as told:
        load("HuggingFaceTB/SmolLM2-135M-Instuct", local_files_only=True)
    assert "Did you mean" not in str(told.value)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all"])
def test_a_path_that_leads_nowhere_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(InputError, match=rf"There is no such folder. Received '{name}'"):
        load(name)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_file_of_a_model_is_answered_with_its_folder(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(InputError, match=rf"is a folder, or a GGUF file.*in: '{tmp_path}'"):
        load(str(tmp_path / file))


def test_names_devices_and_numbers_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with pytest.raises(InputError, match=r"No model is named"):
        load("")
    with pytest.raises(InputError, match=r"dtype is not known. Received 'fp32'.*mean float32\?"):
        load("nobody/nowhere", dtype="fp32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"finds no CUDA device here. Received 'cuda'.*device cpu"):
        load("nobody/nowhere", device="cuda")
    with pytest.raises(InputError, match=r"finds no CUDA device here. Received 'cuda:0'"):
        load("nobody/nowhere", device=0)
    with pytest.raises(InputError, match=r"no such kind of device. Received 'gpu'. Use cpu, cuda"):
        load("nobody/nowhere", device="gpu")
    with pytest.raises(InputError, match=r"by its name or folder. Received a NoneType. For a mo"):
        load(None)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"finds 2 CUDA devices here. Received 'cuda:2'"):
        load("nobody/nowhere", device="cuda:2")


def test_a_saved_model_loads_with_its_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    saved = Architecture("llama", "crop").build().float()
    saved.save_pretrained(tmp_path)
    words = WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(tmp_path)
    model = load(str(tmp_path), device="cpu", dtype="float64")
    assert str(model.model.dtype) == "torch.float64"
    assert model.tokenizer.convert_ids_to_tokens([3]) == ["w3"]
    assert model.name == str(tmp_path)
    assert model.start(1, 8).lengths == [0]


@pytest.mark.parametrize("shown", [True, False])
def test_loading_shows_no_bar_and_leaves_the_switches_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], shown: bool
) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    Architecture("llama", "crop").build().float().save_pretrained(tmp_path)
    words = WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(tmp_path)
    before = logging.is_progress_bar_enabled()
    switch = {True: logging.enable_progress_bar, False: logging.disable_progress_bar}
    switch[shown]()
    capfd.readouterr()
    try:
        load(str(tmp_path))
        assert "Loading weights" not in capfd.readouterr().err
        assert logging.is_progress_bar_enabled() is shown
        assert are_progress_bars_disabled() is not shown
    finally:
        switch[before]()


def test_wrap_takes_what_there_is() -> None:
    table = TableModel.random(3, 1, seed=0)
    assert wrap(table) is table
    model = Architecture("llama", "crop").build()
    tokenizer = SimpleNamespace(encode=list, decode=str)
    wrapped = wrap(model, tokenizer=tokenizer)
    assert isinstance(wrapped, HuggingFaceModel)
    assert (wrapped.model, wrapped.tokenizer) == (model, tokenizer)
    assert isinstance(wrap(lambda ids: np.full((len(ids), 2), 0.5)), FunctionModel)
    with pytest.raises(InputError, match="Received int"):
        wrap(3)


def test_unknown_names_of_the_package_are_unknown() -> None:
    import forerun.models

    with pytest.raises(AttributeError, match="NoSuchModel"):
        _ = forerun.models.NoSuchModel


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    message = r"holds no model: config.json is missing. Received the folder .*, and empty. Name a"
    with pytest.raises(InputError, match=message):
        load(str(tmp_path))
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(InputError, match=r"with notes.txt\. Name a folder with config.json"):
        load(str(tmp_path))


def test_a_folder_with_a_gguf_file_is_answered_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    (tmp_path / "README.md").write_text("none")
    message = rf"config.json is missing.*Name the GGUF file itself: '{tmp_path / 'small.gguf'}'"
    with pytest.raises(InputError, match=message):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ("No file. Look again\nIn vain.", "No file. Look again."),
        ("None of:\n(1) a file,\n(2) none.\nYou need more.", "None of: (1) a file, (2) none."),
        ("Wrong. One of:\na, b", "Wrong."),
        ("Nothing follows:", "Nothing follows."),
        ("", "ValueError."),
    ],
)
def test_the_loader_is_quoted_in_whole_sentences(
    said: str, quoted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError(said)

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    with pytest.raises(InputError) as told:
        load(str(tmp_path))
    assert f"the loader says: {quoted} Received '{tmp_path}'" in str(told.value)


def test_an_option_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    Architecture("llama", "crop").build().float().save_pretrained(tmp_path)
    message = r"load has no option 'devcie'.*Received devcie='cpu'.*Did you mean device\?"
    with pytest.raises(InputError, match=message):
        load(str(tmp_path), devcie="cpu")
    eager = load(str(tmp_path), lean=False, attn_implementation="eager", use_cache=False)
    assert eager.model.config._attn_implementation == "eager"


def test_capped_scores_are_not_left_to_an_attention_without_caps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers 5.17 leaves them, which finds that fused attention will do for Gemma 2."""
    from transformers import Gemma2PreTrainedModel

    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    caps = {"attn_logit_softcapping": 0.1, "head_dim": 8}
    Architecture("gemma2", "crop", caps).build().float().save_pretrained(tmp_path)
    loaded = load(str(tmp_path), lean=False)
    assert loaded.model.config._attn_implementation == "eager"
    fused = load(str(tmp_path), lean=False, attn_implementation="sdpa")
    assert fused.model.config._attn_implementation == "sdpa"


def test_a_folder_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Architecture("llama", "").build().save_pretrained(tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/mine").vocab_size == VOCAB_SIZE


def test_a_tokenizer_is_never_dropped() -> None:
    class Letters:
        def encode(self, text: str, **_: object) -> list[int]:
            return [ord(letter) - ord("a") for letter in text]

        def decode(self, tokens: list[int], **_: object) -> str:
            return "".join(chr(ord("a") + token) for token in tokens)

    def next_letter(ids: np.ndarray) -> np.ndarray:
        return np.eye(5)[(ids[-1] + 1) % 5]

    model = wrap(next_letter, Letters())
    assert generate(model, "ab", max_new_tokens=4).text == "cdea"
    assert wrap(model) is model
    with pytest.raises(InputError, match=r"LanguageModel already.*attribute `tokenizer`"):
        wrap(model, Letters())


def test_weights_that_are_not_there_are_not_made_up(tmp_path: Path) -> None:
    """transformers would fill in random ones, others in each process, and go on."""
    Architecture("llama", "").build().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    part = {name: value for name, value in whole.items() if "layers.1.mlp" not in name}
    save_file(part, file, {"format": "pt"})
    with pytest.raises(InputError, match=r"\(3: model\.layers\.1\.mlp\.down_proj\.weight, .*again"):
        load(tmp_path)
    save_file({**whole, "lm_head.weight": whole["lm_head.weight"][:-1].clone()}, file)
    with pytest.raises(InputError, match=r"lm_head\.weight|size"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"\(1: lm_head\.weight\)"):
        load(tmp_path, ignore_mismatched_sizes=True)
    save_file(whole, file, {"format": "pt"})
    assert load(tmp_path).vocab_size == VOCAB_SIZE


def test_a_folder_without_a_tokenizer_reads_token_ids(tmp_path: Path) -> None:
    import forerun as fr

    Architecture("llama", "crop").build().float().save_pretrained(tmp_path)
    model = load(str(tmp_path))
    assert model.tokenizer is None
    found = fr.generate(model, [1, 2, 3], max_new_tokens=4, logprobs=1)
    assert len(found.tokens) == 4
    assert found.text is None
    assert found.logprobs[0].text is None
    with pytest.raises(InputError, match=r"given as text needs a tokenizer.*Pass token ids, or"):
        fr.generate(model, "text")


def test_what_wrap_refuses() -> None:
    from torch import nn

    with pytest.raises(InputError, match=r"Received Linear. Wrap a function around a torch module"):
        wrap(nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"a class and not yet a model. Received the class Linear"):
        wrap(nn.Linear)
    with pytest.raises(InputError, match=r"Received NoneType. Pass a model's name or folder"):
        wrap(None)


def test_transformers_old_words_for_few_bits_are_answered() -> None:
    with pytest.raises(InputError, match=r'load_in_8bit.*quantize="int8"'):
        load("nowhere", load_in_8bit=True)
