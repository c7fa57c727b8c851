"""Folders that hold something else than a model are told what they are."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import Architecture

import forerun as fr
from forerun.base.errors import MissingExtraError, UnsupportedError
from forerun.loading import kinds

HEADS = {
    "an EAGLE-3 draft model": {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
    "an EAGLE-3": {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000},
    "an EAGLE draft model": {"architectures": ["EagleModel"], "model_type": "eagle"},
    "Medusa heads": {"medusa_num_heads": 5, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"},
    "an MLP speculator": {"architectures": ["MLPSpeculatorPreTrainedModel"], "n_predict": 3},
    "an EAGLE-3 draft": {"speculators_model_type": "eagle3", "architectures": ["Speculator"]},
    "DFlash": {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"},
    r"`speculators`.* \(eagle9\)": {"speculators_model_type": "eagle9"},
}


@pytest.mark.parametrize("kind", HEADS)
def test_draft_heads_are_told_from_models(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HEADS[kind]))
    with pytest.raises(UnsupportedError, match=rf"holds .*{kind}.*drafts for another model"):
        fr.load(str(tmp_path))


def test_a_file_of_medusa_heads_beside_a_plain_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="Medusa heads"):
        fr.load(str(tmp_path))


def test_an_encoder_with_a_decoder(tmp_path: Path) -> None:
    about = {"model_type": "t5", "is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(UnsupportedError, match=r"an encoder and a decoder.*a t5\. Use a causal"):
        fr.load(str(tmp_path))


def test_few_bits_without_their_library(tmp_path: Path) -> None:
    if find_spec("optimum") is not None:
        pytest.skip("the library is there")
    Architecture("llama", "").build().save_pretrained(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    about["quantization_config"] = {"quant_method": "gptq", "bits": 3}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(MissingExtraError, match=r"GPTQ.*Install it with: pip install optimum$"):
        fr.load(str(tmp_path))


def an_adapter(folder: Path, base: str) -> Path:
    folder.mkdir()
    about = {"peft_type": "LORA", "base_model_name_or_path": base, "r": 2}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("has_config", [False, True])
def test_an_adapter_without_peft(
    has_config: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = an_adapter(tmp_path / "adapter", "Qwen/Qwen3-8B")
    if has_config:  # of its base, as some trainers save it
        (folder / "config.json").write_text('{"model_type": "qwen3"}')
    find = find_spec
    monkeypatch.setattr(kinds, "find_spec", lambda name: None if name == "peft" else find(name))
    with pytest.raises(MissingExtraError, match=r"LoRA\) for Qwen/Qwen3-8B.*pip install peft"):
        fr.load(str(folder))


def test_with_peft_an_adapter_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By peft's own function, whose place something of the same shape takes here."""
    base = Architecture("llama", "", dtype=torch.float32).build()
    folder = an_adapter(tmp_path / "adapter", "somewhere")
    asked: list[Any] = []

    class Adapted:
        def merge_and_unload(self) -> Any:
            with torch.no_grad():
                base.model.layers[0].mlp.up_proj.weight += 0.5
            return base

    def from_pretrained(place: str, **options: Any) -> Adapted:
        asked.append(place)
        return Adapted()

    auto = SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "peft", SimpleNamespace(AutoPeftModelForCausalLM=auto))
    monkeypatch.setattr(kinds, "find_spec", lambda name: True)
    loaded = fr.load(str(folder), device="cpu", lean=False)
    assert asked == [str(folder)]
    assert loaded.model is base


@pytest.mark.skipif(find_spec("peft") is None, reason="pip install peft")
def test_a_true_adapter_is_merged(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found, unused-ignore]

    Architecture("llama", "", dtype=torch.float32).build().save_pretrained(tmp_path / "base")
    plain = fr.load(str(tmp_path / "base"), device="cpu", lean=False)
    adapted = get_peft_model(plain.model, LoraConfig(r=2, target_modules=["q_proj"]))
    torch.manual_seed(1)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    merged = fr.load(str(tmp_path / "adapter"), device="cpu", lean=False)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        expected, found = adapted(tokens).logits, merged.model(tokens).logits
    torch.testing.assert_close(found, expected)
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
