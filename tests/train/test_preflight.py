"""What is looked at before a training run computes anything, and the shapes that it serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_end_to_end import train
from tiny_heads import VOCAB_SIZE
from tiny_training import save_prompts, save_target, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

import forerun as fr
from forerun.base.errors import UnsupportedError
from forerun.cli import main
from forerun.drafters import Heads
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.network import Network
from forerun.train import run as training_run
from forerun.train import training
from forerun.train.fit import check_trainable
from forerun.train.sampler import Slots

GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
COMMON = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
COMMON |= {"intermediate_size": 48, "max_position_embeddings": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt_neox": COMMON,
    "qwen2": {**COMMON, "num_key_value_heads": 2},
    "qwen3": {**COMMON, "num_key_value_heads": 2, "head_dim": 16},
    "mistral": {**COMMON, "num_key_value_heads": 2, "sliding_window": 8},
    "gemma3_text": {
        **COMMON,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}

SLOW = [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in ("gpt_neox", "qwen3", "mistral", "gemma3_text")
]


def tiny(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    tokens = {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **{**tokens, **SHAPES.get(kind, COMMON), **options})
    return AutoModelForCausalLM.from_config(config).eval()


def save(kind: str, folder: Path) -> str:
    tiny(kind).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["gpt2", *SLOW])
def test_shapes_other_than_llama_are_trained(kind: str, tmp_path: Path) -> None:
    target, out = save(kind, tmp_path / "target"), tmp_path / "run"
    prompts = save_prompts(tmp_path / "prompts.jsonl")
    assert train(target, out, "--prompts", prompts, "--steps", "2") == 0
    model = fr.load(target, lean=False)
    how: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True, "draft_length": 3}
    asked = [[1, 5, 9, 2, 1], [1, 8]]
    plain, ahead = (
        fr.generate(model, asked, drafter=drafter, **how) for drafter in (None, Heads(out))
    )
    assert [one.tokens for one in plain] == [one.tokens for one in ahead]
    assert sum(one.stats.drafted for one in ahead) > 0


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_that_is_served_passes(kind: str) -> None:
    check_trainable(tiny(kind))


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_that_is_served_passes_in_16_bits(kind: str) -> None:
    check_trainable(tiny(kind).to(torch.bfloat16))


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.slow),  # minutes where it has no such arithmetic
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_the_default_model_passes_in_16_bits(device: str) -> None:
    """A GPU trains in them, and its products are grouped otherwise where texts are continued."""
    target = fr.load("HuggingFaceTB/SmolLM2-135M-Instruct", device, "bfloat16", lean=False)
    check_trainable(target.model)


def test_a_model_without_attention_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"attention in.*MambaFor.*GPT-2 or GPT-NeoX"):
        check_trainable(tiny("mamba", hidden_size=32, num_hidden_layers=2, state_size=4))


def test_a_sampler_that_goes_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a model that does not take positions or attention from its caller."""
    put = Slots.put

    def misplaced(self: Slots, tasks: Any, *, fresh: bool) -> None:
        put(self, tasks, fresh=fresh)
        self._cache.position += 1

    def broken(*args: Any, **options: Any) -> None:
        raise AttributeError("no such layer")

    monkeypatch.setattr(Slots, "put", misplaced)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(UnsupportedError, match=r"tokens come out wrong, by \d.* of the spread"):
            check_trainable(tiny("gpt2").to(dtype))
    monkeypatch.setattr(Slots, "put", broken)
    with pytest.raises(UnsupportedError, match=r"no such layer.*GPT2LMHeadModel"):
        check_trainable(tiny("gpt2"))


@pytest.fixture
def nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_collect", "_train"):
        monkeypatch.setattr(training_run, name, lambda *args: pytest.fail("it went ahead"))


@pytest.mark.usefixtures("nothing_is_computed")
def test_a_full_disk_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = save_target(tmp_path / "target")
    prompts = save_prompts(tmp_path / "prompts.jsonl")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    assert train(target, tmp_path / "new" / "run", "--prompts", prompts) == 2
    assert "The disk has no room for this run" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("nothing_is_computed")
def test_prompts_that_leave_no_room_are_told_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target, file = save_target(tmp_path / "target"), tmp_path / "prompts.jsonl"
    rows = [{"prompt": " ".join([f"w{i}"] * 60)} for i in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train(target, tmp_path / "run", "--prompts", str(file)) == 2
    assert "No prompt leaves room for an answer in 64 tokens" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_optimiser_goes_by_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_products, expected in ((True, "muon"), (False, "adamw")):
        monkeypatch.setattr(training, "_has_bfloat16_products", lambda has=has_products: has)
        assert training.usual_optimiser("cpu") == expected
        assert training.usual_optimiser("cuda:1") == "muon"


@pytest.mark.parametrize("mlp_size", [None, 40])
def test_the_shapes_of_a_design_are_its_networks(mlp_size: int | None) -> None:
    for kind in SHAPES:
        design = Design.after(tiny(kind).config, 20, mlp_size)
        network = Network(design).state_dict()
        assert design.shapes == {name: tuple(value.shape) for name, value in network.items()}


def test_without_torch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("forerun.cli.train.find_spec", lambda name: None)
    assert main(["train", "mine", "--prompts", "some.jsonl", "--out", str(tmp_path)]) == 2
    assert "Training needs torch. Received an environment without torch. Install it with: pip" in (
        capsys.readouterr().err
    )
