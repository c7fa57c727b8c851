"""DFlash and DFlash2 draft models with random weights, in both layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WIDTH, VOCAB, LAYERS = 32, 61, (2, 4)
LAYER = {
    "hidden_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "model_type": "qwen3", "max_position_embeddings": 256,
}  # fmt: skip


def tensors(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"fc.weight": (WIDTH, len(LAYERS) * WIDTH), "hidden_norm.weight": (WIDTH,)}
    shapes["norm.weight"] = (WIDTH,)
    for number in range(LAYER["num_hidden_layers"]):
        at = f"layers.{number}."
        for name, rows, columns in (
            ("q", 32, 32), ("k", 16, 32), ("v", 16, 32), ("o", 32, 32),
        ):  # fmt: skip
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, columns)
        for name, rows, columns in (("gate", 48, 32), ("up", 48, 32), ("down", 32, 48)):
            shapes[f"{at}mlp.{name}_proj.weight"] = (rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (WIDTH,)
        for name in ("q_norm", "k_norm"):
            shapes[f"{at}self_attn.{name}.weight"] = (8,)
    made = {
        name: torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.2) + (len(shape) < 2)
        for name, shape in shapes.items()
    }
    return {name: value for name, value in (made | changes).items() if value is not None}


def flat(**changes: Any) -> dict[str, Any]:
    """As z-lab writes them: the layers whose output is read."""
    about = LAYER | {
        "architectures": ["DFlashDraftModel"],
        "block_size": 4,
        "num_target_layers": 5,
        "dflash_config": {"mask_token_id": 7, "target_layer_ids": [each - 1 for each in LAYERS]},
    }
    return about | changes


def of_speculators(**changes: Any) -> dict[str, Any]:
    verifier = {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]}
    about = {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashSpeculator"],
        "speculators_version": "0.9.0",
        "speculators_config": {"algorithm": "dflash", "verifier": verifier},
        "transformer_layer_config": LAYER,
        "draft_vocab_size": VOCAB,
        "block_size": 4,
        "aux_hidden_state_layer_ids": list(LAYERS),
        "mask_token_id": 7,
    }
    return about | changes


SECOND = {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5}
"""What DFlash2 adds to the settings."""


def tensors_of_second(**changes: Any) -> dict[str, Any]:
    """What DFlash2 adds to the tensors."""
    torch.manual_seed(5)
    taps, groups = SECOND["conv_kernel_size"], WIDTH // SECOND["conv_group_size"]
    made = {
        "candidate_selector.predecessor_codebook": torch.randn(VOCAB, SECOND["selector_rank"]),
        "candidate_selector.successor_codebook": torch.randn(VOCAB, SECOND["selector_rank"]),
        "candidate_selector.hidden_projection.weight": torch.randn(6, WIDTH) * 0.1,
    }
    for number in range(LAYER["num_hidden_layers"]):
        for name in ("attention_conv", "mlp_conv"):
            at = f"layers.{number}.{name}."
            made[f"{at}base_kernel"] = torch.randn(2, taps, WIDTH) * 0.5
            made[f"{at}kernel_projection.weight"] = torch.randn(2 * taps * groups, WIDTH) * 0.1
    return made | changes


def flat_second(**inside: Any) -> dict[str, Any]:
    """DFlash2 as z-lab writes it; inside: changes of its `dflash_config`."""
    about = flat()
    return about | {
        "architectures": ["DFlash2DraftModel"],
        "dflash_config": about["dflash_config"] | SECOND | inside,
    }


def of_speculators_second(**changes: Any) -> dict[str, Any]:
    kind = {"speculators_model_type": "dflash2", "architectures": ["DFlash2DraftModel"]}
    return of_speculators() | kind | SECOND | changes


def write_second(folder: Path, about: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A DFlash2 draft model; changes: of its tensors, None leaves one out."""
    return write(folder, about or flat_second(), **tensors_of_second(**changes))


def write(folder: Path, about: dict[str, Any], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about))
    save_file(tensors(**changes), folder / "model.safetensors")
    return folder
