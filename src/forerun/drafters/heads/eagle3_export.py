"""Writes our trained drafter as an EAGLE-3 head that other engines load.

vLLM counts the layers before a hidden state, SGLang names the layer whose output it is. A flat
folder says both, each where only that engine looks, so one folder serves both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.heads.eagle3 import KIND, pieces, swapped
from forerun.drafters.heads.files import Trained

LAYOUTS = ("eagle3", "speculators")
DTYPES = ("bfloat16", "float16", "float32")
POSITIONS = 131_072  # of the rotation; an engine takes the target's limit where that is less
DRAFT_LENGTH = 5  # what `speculators` files propose
WRITTEN_AS = "0.9.0"  # the version of `speculators` whose layout is written


def export(trained: Trained, folder: Path, layout: str, dtype: str = "bfloat16") -> None:
    """Write config.json and model.safetensors. Neither file is ever left incomplete."""
    import torch
    from safetensors.torch import save_file

    for name, given, known in (("layout", layout, LAYOUTS), ("precision", dtype, DTYPES)):
        if given not in known:
            cure = f"Use one of {', '.join(known)}."
            raise InputError(explain(f"There is no such {name} to export to.", repr(given), cure))
    if not trained.design.is_usual or trained.design.frequencies or trained.embedding is not None:
        wrong = "Only drafters that `forerun train` made are exported."
        raise UnsupportedError(explain(wrong, "a published head", "Use its own folder there."))
    if (folder / "config.json").exists() and (folder / "heads.json").exists():
        wrong = "The folder holds a drafter beside its target, whose config.json would be lost."
        raise InputError(explain(wrong, repr(str(folder)), "Export into a folder of its own."))
    tensors = {
        name: torch.from_numpy(values).to(getattr(torch, dtype)).contiguous()
        for name, values in _tensors(trained).items()
    }
    if layout == "eagle3":
        old = "layers.0.", "midlayer."
        tensors = {name.replace(*old): values for name, values in tensors.items()}
    places = np.arange(len(trained.tokens))
    tensors["d2t"] = torch.from_numpy(trained.tokens - places)
    tensors["t2d"] = torch.zeros(trained.target.vocab_size, dtype=torch.bool)
    tensors["t2d"][torch.from_numpy(trained.tokens)] = True
    described = _flat(trained, dtype) if layout == "eagle3" else _layered(trained, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.replace(folder / "model.safetensors")
    unfinished = folder / "config.json.part"
    unfinished.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / "config.json")


def _tensors(trained: Trained) -> dict[str, Any]:
    """The weights under their published names, in float32."""
    found: dict[str, Any] = {}
    for ours, parts in pieces(trained.design).items():
        whole = trained.weights[ours]
        rows = swapped(whole) if ours == "qkv.weight" else whole
        ends = np.cumsum([count for _, count in parts])[:-1]
        found |= {name: part for (name, _), part in zip(parts, np.split(rows, ends), strict=True)}
    return found


def _layer(trained: Trained, dtype: str) -> dict[str, Any]:
    """The settings of the layer, named as in a Llama configuration."""
    design = trained.design
    return {
        "model_type": "llama",
        "hidden_size": design.hidden_size,
        "intermediate_size": design.mlp_size,
        "num_hidden_layers": 1,
        "num_attention_heads": design.num_heads,
        "num_key_value_heads": design.num_kv_heads,
        "head_dim": design.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": design.norm_eps,
        "rope_theta": design.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": design.rope_theta},
        "max_position_embeddings": POSITIONS,
        "vocab_size": trained.target.vocab_size,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "num_aux_hidden_states": len(design.layers),  # vLLM takes 3 where it is absent
        "dtype": dtype,
    }


def _switches(trained: Trained) -> dict[str, Any]:
    """All switches, including those that are off, because engines assume different defaults."""
    return {
        "draft_vocab_size": trained.design.num_tokens,
        "fc_norm": True,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "target_hidden_size": trained.design.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(trained.design.layers),
    }


def _flat(trained: Trained, dtype: str) -> dict[str, Any]:
    before = [layer - 1 for layer in trained.design.layers]  # as SGLang counts
    inside = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": before}
    about = {"architectures": ["LlamaForCausalLMEagle3"], **_layer(trained, dtype)}
    return about | _switches(trained) | {"eagle_config": inside}


def _layered(trained: Trained, dtype: str) -> dict[str, Any]:
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": DRAFT_LENGTH,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": KIND,
        "speculators_version": WRITTEN_AS,
        "speculators_config": {
            "algorithm": KIND,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": trained.target.name, "architectures": []},
        },
        "transformer_layer_config": _layer(trained, dtype),
        "dtype": dtype,
        "tie_word_embeddings": False,
        **_switches(trained),
    }
