"""Checkpoints of few bits: every stored format, read exactly, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

import stored_bits  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from stored_bits import (  # noqa: E402
    FORMATS,
    FP8,
    awq,
    compressed,
    edited,
    float8,
    pack_quantized,
    scales_of,
)
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.base.errors import InputError, UnsupportedError  # noqa: E402
from forerun.gpu.pool import DeviceMemoryError  # noqa: E402
from forerun.loading import packed_checkpoint, stored_formats  # noqa: E402
from forerun.loading.load import _packed, _packed_format  # noqa: E402
from forerun.models.packed import PackedLinear  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "eos_token_id": None,
}  # fmt: skip


def saved(folder: Path, kind: str) -> tuple[Path, Any]:
    """A checkpoint of a small model in a format, and the same model written out."""
    torch.manual_seed(3)
    about, store = FORMATS[kind]
    config = AutoConfig.for_model("llama", **SIZES)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tensors = {}
    for name, module in model.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            parts, weights = store(*module.weight.shape)
            module.weight.data = weights
            place = f"model.layers.{name}"
            tensors |= {f"{place}.{part}": values for part, values in parts.items()}
    for name, values in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = values.clone()
    save_file(tensors, folder / "model.safetensors")
    told = {**config.to_dict(), "dtype": "bfloat16", "quantization_config": about,
            "architectures": ["LlamaForCausalLM"]}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    return folder, model


@pytest.mark.parametrize("kind", FORMATS)
def test_every_stored_format_is_read_exactly(tmp_path: Path, kind: str) -> None:
    folder, exact = saved(tmp_path, kind)
    stored_as = stored_formats.format_of(FORMATS[kind][0])
    packed = packed_checkpoint.load_packed(folder, stored_as, "cpu", keeps_bits=True)
    written = packed_checkpoint.load_packed(folder, stored_as, "cpu")
    for name, module in exact.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            layer = packed.model.layers.get_submodule(name)
            assert isinstance(layer, PackedLinear)
            assert torch.equal(layer.weight, module.weight)
            assert torch.equal(written.model.layers.get_submodule(name).weight, module.weight)
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(packed(ids).logits, exact(ids).logits)
    assert torch.equal(written(ids).logits, exact(ids).logits)


def test_a_folder_of_few_bits_is_loaded_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, exact = saved(tmp_path, "fp8, blocks")
    model = fr.load(folder, device="cpu")
    rows = model.start(1)
    logits = torch.as_tensor(model.score(rows, [0], [[1, 2, 3, 4]], [1])[0])
    expected = exact.float()(torch.tensor([[1, 2, 3, 4]])).logits[0, -1:]
    assert (logits - expected).abs().max() < 0.02 * expected.std()
    assert "fp8" in capsys.readouterr().err


GATE = "model.layers.0.mlp.gate_proj"
SCALE = f"{GATE}.weight_scale_inv"


def spoilt(tensors: dict[str, Any]) -> None:
    tensors[SCALE][1, 1] = float("nan")


def uneven(tensors: dict[str, Any]) -> None:
    tensors[SCALE] = tensors[SCALE][:3]


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "missing scales": (lambda tensors: tensors.pop(SCALE), InputError, "few bits and no scales"),
    "scales that are NaN": (spoilt, InputError, "NaN or infinite"),
    "groups that do not divide": (uneven, UnsupportedError, "do not divide"),
    "another kind of number": (
        lambda tensors: tensors.update({f"{GATE}.weight": torch.ones(128, 64, dtype=torch.int8)}),
        InputError,
        "not stored as config.json says",
    ),
    "weights that are NaN": (
        lambda tensors: tensors[f"{GATE}.weight"].view(torch.uint8)[0].fill_(0x7F),
        InputError,
        "some are NaN",
    ),
    "too large a scale": (lambda tensors: tensors[SCALE].fill_(300), UnsupportedError, "too large"),
    "a missing norm": (
        lambda tensors: tensors.pop("model.norm.weight"), InputError, "lacks the weight model.norm"
    ),
    "tensors that nothing knows": (
        lambda tensors: tensors.update({f"{GATE}.codebook": torch.ones(2)}), InputError, "codebook"
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoints_are_refused(tmp_path: Path, damage: str) -> None:
    folder, _ = saved(tmp_path, "fp8, blocks")
    change, error, message = DAMAGE[damage]
    edited(folder, change)
    with pytest.raises(error, match=message):
        packed_checkpoint.load_packed(folder, stored_formats.format_of(FP8), "cpu")


ROUNDED_UP: dict[str, tuple[dict[str, Any], Callable[[int, int], Any]]] = {
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda rows, depth: float8(rows, depth, "weight_scale_inv", scales_of(2, 2)),
    ),
    "fp8, unsaid": (
        {"quant_method": "fp8"},
        lambda rows, depth: float8(rows, depth, "weight_scale_inv", scales_of(2, 2)),
    ),
    "float-quantized": (
        compressed("float-quantized", "float", 8, block_structure=[128, 128]),
        lambda rows, depth: float8(rows, depth, "weight_scale", scales_of(2, 2)),
    ),
    "float-quantized, as text": (
        compressed("float-quantized", "float", 8, block_structure="128x128"),
        lambda rows, depth: float8(rows, depth, "weight_scale", scales_of(2, 2)),
    ),
    "pack-quantized": (
        compressed("pack-quantized", "int", 4, group_size=128),
        lambda rows, depth: pack_quantized(rows, depth, 4, has_zeros=False),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, awq),
}


@pytest.mark.parametrize("kind", ROUNDED_UP)
def test_as_many_scales_as_other_groups_would_have_are_not_theirs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 192 inputs in groups of 128 there are two scales, as of groups of 96."""
    monkeypatch.setattr(stored_bits, "GROUP", 96)
    about, store = ROUNDED_UP[kind]
    parts, weights = store(192, 192)
    stored = stored_formats.Stored("it", (192, 192), torch.bfloat16, parts.get)
    with pytest.raises(UnsupportedError, match=r"192.*config\.json has one for (128|\?) x 128"):
        stored_formats.format_of(about).read(stored)
    others = {"weight_block_size": [96, 96], "block_structure": [96, 96], "group_size": 96}
    told = about.get("config_groups", {"": {"weights": about}}).values()
    for one in told:
        one["weights"].update(others)
    assert torch.equal(stored_formats.format_of(about).read(stored).written_out(), weights)


def test_a_checkpoint_that_stores_another_format_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path, "awq")
    with pytest.raises(InputError, match="stored as fp8, and none is"):
        packed_checkpoint.load_packed(folder, stored_formats.format_of(FP8), "cpu")


UNSERVED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "bitsandbytes"}, "awq, gptq"),
    "three bits": ({"quant_method": "gptq", "bits": 3}, "4 or 8 bits"),
    "marlin": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "gptq"),
    "gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemm"),
    "two bits": (compressed("pack-quantized", "int", 2), "pack-quantized"),
    "nvfp4": (compressed("nvfp4-pack-quantized", "float", 4), "float-quantized"),
    "groups in another order": (
        compressed("pack-quantized", "int", 4, actorder="group"), "actorder weight"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNSERVED)
def test_the_nearest_format_is_named(what: str) -> None:
    about, nearest = UNSERVED[what]
    with pytest.raises(UnsupportedError, match=nearest):
        stored_formats.format_of(about)


def test_groups_in_the_order_of_activations_are_refused(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path, "gptq, 4 bits")
    edited(folder, lambda tensors: tensors[f"{GATE}.g_idx"].copy_(tensors[f"{GATE}.g_idx"].flip(0)))
    with pytest.raises(UnsupportedError, match="desc_act"):
        packed_checkpoint.load_packed(
            folder, stored_formats.format_of(FORMATS["gptq, 4 bits"][0]), "cpu"
        )


@pytest.mark.parametrize("what", ["desc_act", "another architecture", "other files"])
def test_what_the_pass_cannot_read_is_left_to_transformers(what: str, tmp_path: Path) -> None:
    """With a warning; lean=True refuses it."""
    folder, _ = saved(tmp_path, "gptq, 4 bits")
    config = json.loads((folder / "config.json").read_text())
    if what == "another architecture":
        config["architectures"] = ["BloomForCausalLM"]
    elif what == "other files":
        (folder / "model.safetensors").rename(folder / "gptq_model-4bit-128g.safetensors")
    else:
        index = f"{GATE}.g_idx"
        edited(folder, lambda tensors: tensors[index].copy_(tensors[index].flip(0)))

    def read(lean: Any) -> Any:
        stored_as = _packed_format("it", folder, config, lean)
        if stored_as is None:
            return None
        return _packed("it", folder, stored_as, "cpu", None, lean)

    with pytest.warns(RuntimeWarning, match="it is left to transformers"):
        assert read("auto") is None
    with pytest.raises(UnsupportedError):
        read(True)


def test_adapters_that_are_not_merged_are_refused(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path, "fp8, blocks")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="adapter"):
        packed_checkpoint.load_packed(folder, stored_formats.format_of(FP8), "cpu")
    alone = tmp_path / "adapter"
    alone.mkdir()
    (alone / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    with pytest.raises(UnsupportedError, match="few bits"):
        fr.load(alone)


def test_how_much_memory_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20e9, 80e9))
    with pytest.raises(DeviceMemoryError, match=r"70\.0 GB .* 19\.0 GB are free: 51\.0 GB"):
        packed_checkpoint.check_room(tmp_path, int(70e9), "cuda")


def test_a_name_on_the_hub_is_downloaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = saved(tmp_path, "awq")
    asked = []

    def download(name: str, *rest: Any, **options: Any) -> str:
        asked.append((name, options.get("revision"), options.get("ignore_patterns")))
        return str(folder / rest[0] if rest else folder)

    monkeypatch.setattr("forerun.loading.hub.why_not", lambda *given: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = fr.load("somebody/small-awq", device="cpu", revision="main")
    assert model.name == "somebody/small-awq"
    config, weights = (("somebody/small-awq", "main", each) for each in (None, "*/*"))
    assert asked == [config, weights]
