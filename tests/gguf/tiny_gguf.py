"""Writes tiny transformers models as GGUF files, in llama.cpp's names and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize, quantize
from tiny_models import VOCAB_SIZE

Kind = GGMLQuantizationType

PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OF_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SCALES_AT = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2),
             Kind.Q6_K: (208,)}  # fmt: skip
"""Where the float16 scales of a block of 256 weights lie; all other bytes may be any."""

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?Ġ"
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ a", "1 2")
TOKENS = ["<|end|>", "<|start|>", *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]
BYTE_PAIRS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS + [f"<u{i}>" for i in range(VOCAB_SIZE - len(TOKENS))],
    "tokenizer.ggml.token_type": [3, 3] + [1] * (VOCAB_SIZE - 2),
    "tokenizer.ggml.merges": list(MERGES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
}


def write(
    path: Path, model: Any, kind: Kind = Kind.F32, fields: dict[str, Any] | None = None
) -> None:
    """Write a model with its matrices in a type, and let the model have the rounded weights."""
    config = model.config
    arch = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    arch = "llama" if arch == "mistral" else arch
    writer = GGUFWriter(path, arch)
    for name, value in (header(model, arch) | (BYTE_PAIRS if fields is None else fields)).items():
        add(writer, name, value)
    parts = PARTS | (OF_GEMMA if arch == "gemma3" else {})
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float().numpy()
        part, _, suffix = name.removeprefix("model.layers.").rpartition(".")
        layer, _, inside = part.partition(".")
        is_inside = name.startswith("model.layers.")
        title = f"blk.{layer}.{parts[inside]}.{suffix}" if is_inside else f"{parts[part]}.{suffix}"
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        is_turned = arch == "llama" and is_inside and parts[inside] in heads
        if is_turned:  # rotary halves become pairs side by side
            halves = values.reshape(heads[parts[inside]], 2, -1, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        if arch == "gemma3" and "norm" in name:
            values = values + 1
        if values.ndim == 1 or values.shape[1] % GGML_QUANT_SIZES[kind][0]:
            writer.add_tensor(title, values)
            continue
        data = packed(values, kind)
        writer.add_tensor(title, data, raw_dtype=kind)
        values = dequantize(data, kind)
        if is_turned:
            pairs = values.reshape(heads[parts[inside]], -1, 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        weight.copy_(torch.from_numpy(np.array(values)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed(values: Any, kind: Kind) -> Any:
    """The nearest numbers of a type; of one that cannot be written, any numbers."""
    if kind not in SCALES_AT:
        return quantize(values, kind)
    generator = np.random.default_rng(0)
    block, size = GGML_QUANT_SIZES[kind]
    data = generator.integers(0, 256, (values.size // block, size), np.uint8)
    for at in SCALES_AT[kind]:
        scales = generator.uniform(1e-4, 1e-3, len(data)).astype(np.float16)
        data[:, at : at + 2] = scales[:, None].view(np.uint8)
    return data.reshape(len(values), -1)


def header(model: Any, arch: str) -> dict[str, Any]:
    config = model.config
    rope = config.rope_parameters
    fields = {
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": model.model.layers[0].self_attn.head_dim,
        "attention.value_length": model.model.layers[0].self_attn.head_dim,
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    if arch == "gemma3":
        fields["attention.sliding_window"] = config.sliding_window
    return {f"{arch}.{name}": value for name, value in fields.items()}


def add(writer: GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
