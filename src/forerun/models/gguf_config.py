"""The transformers configuration of a GGUF file, for the architectures that are served."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from forerun.errors import UnsupportedError, explain
from forerun.models.gguf_file import GgufFile

SERVED = ("llama", "qwen2", "qwen3", "gemma3")  # Mistral and SmolLM call themselves llama
REQUIRED = object()
# Llama 3 stretches slow rotations.  A file has the stretch of each rotation and not these three
# numbers, which all models so far have in common.
LOW_FREQUENCY, HIGH_FREQUENCY, OLD_CONTEXT = 1.0, 4.0, 8192
LARGEST_GEMMA = 62  # layers; its queries are scaled by hidden / heads and not by the head size


def config_of(file: GgufFile) -> Any:
    """What transformers needs to know before it reads weights."""
    kind = architecture(file)
    hidden, heads = _field(file, "embedding_length"), _field(file, "attention.head_count")
    key_heads = _field(file, "attention.head_count_kv", heads)
    for name, value in (("head_count", heads), ("head_count_kv", key_heads)):
        if isinstance(value, list):
            raise _unsupported(file, "Layers with different numbers of heads are not served.", name)
    counts = {"embedding_length": hidden, "head_count": heads, "head_count_kv": key_heads}
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise file.damaged(f"{name} {value!r:.40}")
    head_size = _field(file, "attention.key_length", hidden // heads)
    if _field(file, "attention.value_length", head_size) != head_size:
        raise _unsupported(file, "Values must be as long as keys.", "attention.value_length")
    if _field(file, "rope.dimension_count", head_size) != head_size:
        raise _unsupported(file, "Heads must be rotated as a whole.", "rope.dimension_count")
    if _field(file, "expert_count", 0):
        raise _unsupported(file, "Mixtures of experts are not served.", "expert_count")
    shared: dict[str, Any] = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _field(file, "feed_forward_length"),
        "num_hidden_layers": _field(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_size,
        "max_position_embeddings": _field(file, "context_length"),
        "rms_norm_eps": _field(file, "attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _endings(file),
        "pad_token_id": file.fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }
    if kind == "gemma3":
        return _gemma3(file, shared)
    if kind == "qwen2":
        return Qwen2Config(
            architectures=["Qwen2ForCausalLM"], rope_parameters=_rope(file), **shared
        )
    biases: dict[str, Any] = {"attention_bias": "blk.0.attn_q.bias" in file.tensors}
    if kind == "qwen3":
        return Qwen3Config(
            architectures=["Qwen3ForCausalLM"], rope_parameters=_rope(file), **shared, **biases
        )
    biases["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    return LlamaConfig(
        architectures=["LlamaForCausalLM"], rope_parameters=_rope(file), **shared, **biases
    )


def architecture(file: GgufFile) -> str:
    """The family of a file, if it is served."""
    kind = file.fields.get("general.architecture")
    if kind not in SERVED or "token_embd.weight" not in file.tensors:
        wrong = f"GGUF files of these architectures are served: {', '.join(SERVED)}."
        cure = "Load the model's original checkpoint: transformers serves any architecture."
        raise UnsupportedError(explain(wrong, f"{kind!r} in {str(file.path)!r}", cure))
    return str(kind)


def _gemma3(file: GgufFile, shared: dict[str, Any]) -> Any:
    layers, hidden = shared["num_hidden_layers"], shared["hidden_size"]
    scale = shared["head_dim"]
    if layers == LARGEST_GEMMA:
        scale = hidden // shared["num_attention_heads"]
    local = {"rope_type": "default", "rope_theta": _field(file, "rope.freq_base_swa", 10000.0)}
    pattern = _field(file, "attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):  # whether each layer slides
        slides = [bool(slide) for slide in pattern[:layers]]
    else:
        slides = [(layer + 1) % pattern != 0 for layer in range(layers)]
    return Gemma3TextConfig(
        architectures=["Gemma3ForCausalLM"],
        query_pre_attn_scalar=scale,
        sliding_window=_field(file, "attention.sliding_window"),
        layer_types=["sliding_attention" if slide else "full_attention" for slide in slides],
        rope_parameters={"full_attention": _rope(file, 1e6), "sliding_attention": local},
        final_logit_softcapping=_field(file, "final_logit_softcapping", None),
        **shared,
    )


def _rope(file: GgufFile, usual_base: float = 10000.0) -> dict[str, Any]:
    """The rotary table, as transformers describes it."""
    base = _field(file, "rope.freq_base", usual_base)
    kind, factor = _field(file, "rope.scaling.type", "none"), _field(file, "rope.scaling.factor", 1)
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, base)
    if kind == "none" or factor == 1:
        return {"rope_type": "default", "rope_theta": base}
    if kind != "linear":
        raise _unsupported(file, "This rotary table is not served.", f"rope.scaling.type {kind!r}")
    return {"rope_type": "linear", "rope_theta": base, "factor": factor}


def _llama3(file: GgufFile, base: float) -> dict[str, Any]:
    """Llama 3's table, from the stretch of each rotation."""
    stretches = file.tensors["rope_freqs.weight"].values()
    factor = round(float(stretches.max()), 3)
    periods = 2 * math.pi * base ** (np.arange(len(stretches)) / len(stretches))
    turns = OLD_CONTEXT / periods  # within the old context
    share = np.clip((turns - LOW_FREQUENCY) / (HIGH_FREQUENCY - LOW_FREQUENCY), 0, 1)
    if not np.allclose(stretches, 1 / ((1 - share) / factor + share), rtol=1e-4):
        raise _unsupported(file, "This rotary table is not Llama 3's.", "rope_freqs.weight")
    return {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": factor,
        "low_freq_factor": LOW_FREQUENCY,
        "high_freq_factor": HIGH_FREQUENCY,
        "original_max_position_embeddings": OLD_CONTEXT,
    }


def _endings(file: GgufFile) -> int | list[int] | None:
    """The tokens that end a text, or a turn of a conversation."""
    ids = [file.fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    endings = list(dict.fromkeys(token for token in ids if token is not None))
    return endings if len(endings) > 1 else endings[0] if endings else None


def _field(file: GgufFile, name: str, default: Any = REQUIRED) -> Any:
    """A field of the file's own architecture."""
    value = file.fields.get(f"{architecture(file)}.{name}", default)
    if value is REQUIRED:
        raise _unsupported(file, "The GGUF file lacks a field.", f"no {name}")
    return value


def _unsupported(file: GgufFile, wrong: str, received: str) -> UnsupportedError:
    cure = "Load the model's original checkpoint: transformers serves any architecture."
    return UnsupportedError(explain(wrong, f"{received} in {str(file.path)!r}", cure))
