"""Checkpoints whose experts have few bits: read exactly, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from stored_bits import FORMATS, edited, mxfp4  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from forerun.base.errors import InputError, UnsupportedError  # noqa: E402
from forerun.loading import packed_checkpoint, stored_formats  # noqa: E402
from forerun.loading.load import _packed, _packed_format  # noqa: E402
from forerun.models.packed import PackedStack, packed_parts  # noqa: E402

COMMON: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "eos_token_id": None, "num_experts_per_tok": 2,
    "pad_token_id": 0,
}  # fmt: skip
QWEN: dict[str, Any] = {"num_experts": 3, "moe_intermediate_size": 128, "intermediate_size": 128}
GPT_OSS: dict[str, Any] = {"num_local_experts": 3, "intermediate_size": 128}
STORED_AS_STACK = "mxfp4"
ABOUT = {STORED_AS_STACK: {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}} | {
    name: about for name, (about, _) in FORMATS.items() if name != STORED_AS_STACK
}
STACKS = ("gate_up_proj", "down_proj")
EXPERTS = "model.layers.0.mlp.experts"


def saved(folder: Path, kind: str, **options: Any) -> tuple[Path, Any]:
    """A checkpoint of a small model with experts, and the same model written out: gpt-oss for
    "mxfp4", Qwen3-MoE for the others."""
    torch.manual_seed(3)
    is_stack = kind == STORED_AS_STACK
    name, sizes = ("gpt_oss", GPT_OSS) if is_stack else ("qwen3_moe", QWEN)
    config = AutoConfig.for_model(name, **{**COMMON, **sizes, **options})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    owner = model.model.layers[0].mlp.experts
    for stack in STACKS:
        del tensors[f"{EXPERTS}.{stack}"]
        whole = getattr(owner, stack).data
        for expert in range(len(whole)):
            own = whole[expert].T if is_stack else whole[expert]
            names = [stack] if is_stack or stack == "down_proj" else ["gate_proj", "up_proj"]
            for part, rows in zip(names, own.chunk(len(names)), strict=True):
                parts, weights = (mxfp4 if is_stack else FORMATS[kind][1])(*rows.shape)
                rows.copy_(weights)
                for end, table in parts.items():
                    if not is_stack:
                        tensors[f"{EXPERTS}.{expert}.{part}.{end}"] = table
                        continue
                    end = {"weight_packed": "blocks", "weight_scale": "scales"}[end]
                    if end == "blocks":
                        table = table.view(len(table), -1, 16)
                    tensors.setdefault(f"{EXPERTS}.{part}_{end}", []).append(table)
    tensors = {
        key: torch.stack(each) if isinstance(each, list) else each for key, each in tensors.items()
    }
    save_file(tensors, folder / "model.safetensors")
    told = {**config.to_dict(), "dtype": "bfloat16", "quantization_config": ABOUT[kind],
            "architectures": [type(model).__name__]}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    return folder, model


def loaded(folder: Path, kind: str, *, keeps_bits: bool) -> Any:
    stored_as = stored_formats.format_of(ABOUT[kind])
    return packed_checkpoint.load_packed(folder, stored_as, "cpu", keeps_bits=keeps_bits)


@pytest.mark.parametrize("kind", ABOUT)
def test_every_stored_format_is_read_exactly(tmp_path: Path, kind: str) -> None:
    folder, exact = saved(tmp_path, kind)
    exact.set_experts_implementation("eager")
    packed, written = (loaded(folder, kind, keeps_bits=keeps) for keeps in (True, False))
    owner = exact.model.layers[0].mlp.experts
    assert len(list(packed_parts(packed))) == len(STACKS)
    assert not list(packed_parts(written))
    for stack in STACKS:
        kept = getattr(packed.model.layers[0].mlp.experts, stack)
        assert isinstance(kept, PackedStack)
        for expert, weights in enumerate(getattr(owner, stack)):
            assert torch.equal(kept[expert], weights)
        assert torch.equal(
            getattr(written.model.layers[0].mlp.experts, stack), getattr(owner, stack)
        )
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(packed(ids).logits, exact(ids).logits)
    written.set_experts_implementation("eager")
    assert torch.equal(written(ids).logits, exact(ids).logits)


def test_a_folder_with_experts_of_few_bits_is_not_left_to_transformers(tmp_path: Path) -> None:
    for kind in (STORED_AS_STACK, "fp8, blocks"):
        folder, _ = saved(tmp_path, kind)
        config = json.loads((folder / "config.json").read_text())
        stored_as = _packed_format("it", folder, config, "auto")
        assert _packed("it", folder, stored_as, "cpu", None, True) is not None


STACK = f"{EXPERTS}.down_proj"
ONE = f"{EXPERTS}.1.up_proj"


def damaged(tensors: dict[str, Any], how: str) -> None:
    if how == "missing scales":
        del tensors[f"{STACK}_scales"]
    elif how == "a scale that is NaN":
        tensors[f"{STACK}_scales"][1, 2, 0] = 255
    elif how == "an expert too few":
        tensors[f"{STACK}_blocks"] = tensors[f"{STACK}_blocks"][:2]
    elif how == "scales of another shape":
        tensors[f"{STACK}_scales"] = tensors[f"{STACK}_scales"][:, :, :1]
    elif how == "another kind of number":
        tensors[f"{STACK}_blocks"] = tensors[f"{STACK}_blocks"].view(torch.int8)
    elif how == "a missing scale of one":
        del tensors[f"{ONE}.weight_scale_inv"]
    elif how == "a scale of one that is NaN":
        tensors[f"{ONE}.weight_scale_inv"][0, 0] = float("nan")
    elif how == "groups that do not divide":
        tensors[f"{ONE}.weight_scale_inv"] = tensors[f"{ONE}.weight_scale_inv"][:3]
    elif how == "a router of few bits":
        tensors["model.layers.0.mlp.gate.weight_scale_inv"] = torch.ones(1, 2)
    elif how == "experts of several kinds":
        tensors[f"{ONE}.weight_scale_inv"] = tensors[f"{ONE}.weight_scale_inv"][:, :1].clone()


REFUSED: dict[str, tuple[str, type[Exception], str]] = {
    "missing scales": ("mxfp4", InputError, "lack 'scales'"),
    "a scale that is NaN": ("mxfp4", InputError, r"down_proj\[1\] are damaged"),
    "an expert too few": ("mxfp4", InputError, "does not belong"),
    "scales of another shape": ("mxfp4", InputError, "does not belong"),
    "another kind of number": ("mxfp4", InputError, "not stored as config.json says"),
    "a missing scale of one": ("fp8, blocks", UnsupportedError, "all have few bits"),
    "a scale of one that is NaN": ("fp8, blocks", InputError, "NaN or infinite"),
    "groups that do not divide": ("fp8, blocks", UnsupportedError, "do not divide"),
    "a router of few bits": ("fp8, blocks", UnsupportedError, "routers in 16 bits"),
    "experts of several kinds": ("fp8, blocks", UnsupportedError, "all alike"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_damaged_experts_are_refused(tmp_path: Path, how: str) -> None:
    kind, error, message = REFUSED[how]
    folder, _ = saved(tmp_path, kind)
    edited(folder, lambda tensors: damaged(tensors, how))
    with pytest.raises(error, match=message):
        loaded(folder, kind, keeps_bits=True)


@pytest.mark.parametrize("size", [80, 96])
def test_a_width_that_groups_or_words_do_not_divide_is_refused(tmp_path: Path, size: int) -> None:
    """Groups of 32 do not divide 80, and words of 64 inputs not 96."""
    folder, _ = saved(tmp_path, STORED_AS_STACK)
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": size}
    (folder / "config.json").write_text(json.dumps(config))

    def cut(tensors: dict[str, Any]) -> None:
        tensors[f"{EXPERTS}.gate_up_proj_blocks"] = tensors[f"{EXPERTS}.gate_up_proj_blocks"][
            :, : 2 * size
        ]
        tensors[f"{EXPERTS}.gate_up_proj_scales"] = tensors[f"{EXPERTS}.gate_up_proj_scales"][
            :, : 2 * size
        ]
        for part in ("blocks", "scales"):
            tensors[f"{STACK}_{part}"] = tensors[f"{STACK}_{part}"][:, :, : size // 32]

    edited(folder, cut)
    with pytest.raises(UnsupportedError, match=r"do not divide|cannot be packed"):
        loaded(folder, STORED_AS_STACK, keeps_bits=True)


def test_the_files_of_the_test_hold_no_expert_in_16_bits(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path, STORED_AS_STACK)
    names = load_file(folder / "model.safetensors")
    assert {f"{STACK}_blocks", f"{STACK}_scales"} <= {*names}
    assert STACK not in names
