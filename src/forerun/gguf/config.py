"""Makes the transformers configuration of a GGUF file, for the architectures that are served."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from forerun.base.errors import UnsupportedError, explain
from forerun.gguf.file import LAYER, GgufFile

SERVED = ("llama", "qwen2", "qwen3", "gemma3")  # Mistral and SmolLM call themselves llama
REQUIRED = object()
# Llama 3 stretches slow rotations.  A file contains the stretch of each rotation but not these
# three numbers, which are the same in all models so far.
LOW_FREQUENCY, HIGH_FREQUENCY, OLD_CONTEXT = 1.0, 4.0, 8192
LARGEST_NUMBER = float(np.finfo(np.float32).max)
LARGEST_GEMMA = 62  # layers; this model scales queries by hidden / heads, not by the head size


def config_of(file: GgufFile) -> Any:
    """The transformers configuration of a file.

    Raises UnsupportedError for another architecture, InputError for fields that make no sense.
    """
    kind = architecture(file)
    for name in ("attention.head_count", "attention.head_count_kv"):
        if isinstance(_field(file, name, None), np.ndarray):
            raise _unsupported(file, "Layers with different numbers of heads are not served.", name)
    hidden, heads = _count(file, "embedding_length"), _count(file, "attention.head_count")
    head_size = _count(file, "attention.key_length", hidden // heads)
    if _field(file, "attention.value_length", head_size) != head_size:
        raise _unsupported(file, "Values must be as long as keys.", "attention.value_length")
    if _field(file, "rope.dimension_count", head_size) != head_size:
        raise _unsupported(file, "Heads must be rotated as a whole.", "rope.dimension_count")
    if _field(file, "expert_count", 0):
        raise _unsupported(file, "Mixtures of experts are not served.", "expert_count")
    if not _field(file, "attention.causal", True):
        raise _unsupported(file, "Attention to later tokens is not served.", "attention.causal")
    shared: dict[str, Any] = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _count(file, "feed_forward_length"),
        "num_hidden_layers": _num_layers(file),
        "num_attention_heads": heads,
        "num_key_value_heads": _count(file, "attention.head_count_kv", heads),
        "head_dim": head_size,
        "max_position_embeddings": _count(file, "context_length"),
        "rms_norm_eps": _positive(file, "attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.token_id("bos"),
        "eos_token_id": _endings(file),
        "pad_token_id": file.token_id("padding"),
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
    """The architecture of a file, one of SERVED; UnsupportedError for any other."""
    kind = file.fields.get("general.architecture")
    if kind not in SERVED or "token_embd.weight" not in file.tensors:
        wrong = f"GGUF files of these architectures are served: {', '.join(SERVED)}."
        cure = "Load the model's original checkpoint: transformers serves any architecture."
        raise UnsupportedError(explain(wrong, f"{kind!r} in {str(file.path)!r}", cure))
    return str(kind)


def _gemma3(file: GgufFile, shared: dict[str, Any]) -> Any:
    """The configuration of a Gemma 3.  shared: the fields that all architectures have."""
    layers, hidden = shared["num_hidden_layers"], shared["hidden_size"]
    scale = shared["head_dim"]
    if layers == LARGEST_GEMMA:
        scale = hidden // shared["num_attention_heads"]
    local = {"rope_type": "default", "rope_theta": _positive(file, "rope.freq_base_swa", 10000.0)}
    pattern = _field(file, "attention.sliding_window_pattern", 6)
    if isinstance(pattern, np.ndarray):  # for each layer whether it has a sliding window
        slides = [bool(slide) for slide in pattern[:layers]]
    else:
        slides = [(layer + 1) % pattern != 0 for layer in range(layers)]
    cap = "final_logit_softcapping"
    return Gemma3TextConfig(
        architectures=["Gemma3ForCausalLM"],
        query_pre_attn_scalar=scale,
        sliding_window=_count(file, "attention.sliding_window"),
        layer_types=["sliding_attention" if slide else "full_attention" for slide in slides],
        rope_parameters={"full_attention": _rope(file, 1e6), "sliding_attention": local},
        final_logit_softcapping=_positive(file, cap) if _field(file, cap, 0) else None,
        **shared,
    )


def _rope(file: GgufFile, usual_base: float = 10000.0) -> dict[str, Any]:
    """The rotary table in the form that transformers reads."""
    base = _positive(file, "rope.freq_base", usual_base)
    if _field(file, "rope.scaling.attn_factor", 1) != 1:
        raise _unsupported(file, "This rotary table is not served.", "rope.scaling.attn_factor")
    factor = _stretch(file)
    if "rope_freqs.weight" not in file.tensors:
        if factor == 1:
            return {"rope_type": "default", "rope_theta": base}
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    if factor != 1:
        received = f"rope_freqs.weight and a factor of {factor}"
        raise _unsupported(file, "A rotary table is stretched in one way only.", received)
    return _llama3(file, base)


def _stretch(file: GgufFile) -> float:
    """The factor by which positions are divided.  llama.cpp takes a number without further fields
    for this factor, and zero for no factor."""
    kind = _field(file, "rope.scaling.type", "linear")
    name = "rope.scaling.factor"
    if _field(file, name, None) is None:
        name = "rope.scale_linear"  # the name in old files
    if kind == "none" or _field(file, name, 0) in (0, 1):
        return 1.0
    if kind != "linear":
        raise _unsupported(file, "This rotary table is not served.", f"rope.scaling.type {kind!r}")
    return _positive(file, name)


def _llama3(file: GgufFile, base: float) -> dict[str, Any]:
    """The rotary table of Llama 3, from the stretch of each rotation in the file."""
    stretches = file.tensors["rope_freqs.weight"].values()
    factor = round(float(stretches.max()), 3)
    periods = 2 * math.pi * base ** (np.arange(len(stretches)) / len(stretches))
    turns = OLD_CONTEXT / periods  # number of turns within the old context
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
    """The id or ids of the tokens that end a text or a turn of a conversation; None for none."""
    ids = [file.token_id(role) for role in ("eos", "eot")]
    endings = list(dict.fromkeys(token for token in ids if token is not None))
    return endings if len(endings) > 1 else endings[0] if endings else None


def _num_layers(file: GgufFile) -> int:
    """The number of layers.  Raises InputError if fields and tensors disagree, because building a
    wrong number of layers may take forever."""
    told = _count(file, "block_count")
    found = len({layer[1] for name in file.tensors if (layer := LAYER.fullmatch(name))})
    if told != found:
        raise file.damaged(f"block_count {told:,} with tensors of {found:,} layers")
    return told


def _count(file: GgufFile, name: str, default: Any = REQUIRED) -> int:
    """A field that must be a whole number from 1 on."""
    value = _field(file, name, default)
    if type(value) is not int or value < 1:
        raise file.damaged(f"{name} {value!r:.40}")
    return value


def _positive(file: GgufFile, name: str, default: Any = REQUIRED) -> float:
    """A field that must be a positive number in the range of float32."""
    value = _field(file, name, default)
    if type(value) not in (int, float) or not 0 < value <= LARGEST_NUMBER:
        raise file.damaged(f"{name} {value!r:.40}")
    return float(value)


def _field(file: GgufFile, name: str, default: Any = REQUIRED) -> Any:
    """A field of the file's architecture; UnsupportedError if it is missing without a default."""
    value = file.fields.get(f"{architecture(file)}.{name}", default)
    if value is REQUIRED:
        raise _unsupported(file, "The GGUF file lacks a field.", f"no {name}")
    return value


def _unsupported(file: GgufFile, wrong: str, received: str) -> UnsupportedError:
    cure = "Load the model's original checkpoint: transformers serves any architecture."
    return UnsupportedError(explain(wrong, f"{received} in {str(file.path)!r}", cure))
