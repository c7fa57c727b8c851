"""The architectures every strategy is tested on, and the strategy each should get."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import ROUNDED, VOCAB_SIZE, Architecture

WINDOW = {"sliding_window": 5}  # shorter than the texts, so that it matters
HEAD = {"head_dim": 8}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
SMALL_EXPERTS = {**EXPERTS, "moe_intermediate_size": 16}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
}
# Mixtures of experts have no float64 kernel.
FLOAT32 = {"tolerance": ROUNDED, "dtype": torch.float32}
# Float64, but the softmax, rotation or scan inside is float32.
MIXED = {"tolerance": ROUNDED}


def _model(kind: str, strategy: str, *options: dict[str, Any], **how: Any) -> Architecture:
    merged = {name: value for part in options for name, value in part.items()}
    return Architecture(kind, strategy, merged, **how)


ATTENTION = [
    _model("llama", "crop"),
    _model("llama", "crop", attention="eager", **MIXED),
    _model("gpt2", "crop", GPT2),
    _model("gpt_neox", "crop"),
    _model("opt", "crop", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    _model("mistral", "crop", WINDOW),
    _model("mistral", "crop", WINDOW, attention="eager", **MIXED),
    _model("gemma2", "crop", WINDOW, HEAD, **MIXED),
    _model("gemma3_text", "crop", WINDOW, HEAD, {"num_hidden_layers": 6}),
    _model(
        "gemma3_text", "crop", WINDOW, HEAD, {"num_hidden_layers": 6}, attention="eager", **MIXED
    ),
    _model(
        "gemma3n_text",
        "crop",
        WINDOW,
        HEAD,
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "intermediate_size": [48] * 4,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    _model("qwen2", "crop"),
    _model("qwen3", "crop", HEAD),
    _model("qwen3_moe", "crop", HEAD, SMALL_EXPERTS, **FLOAT32),
    _model("phi", "crop"),
    _model("phi3", "crop", WINDOW),
    _model("mixtral", "crop", EXPERTS, **FLOAT32),
    _model("falcon", "crop"),
    _model("olmo2", "crop"),
    _model("cohere2", "crop", WINDOW, {"num_hidden_layers": 4}),
    _model("starcoder2", "crop", WINDOW),
    _model("gpt_oss", "crop", WINDOW, HEAD, EXPERTS, **FLOAT32),
    _model("smollm3", "crop"),
    _model("granite", "crop"),
    _model("gptj", "crop", GPT2, {"rotary_dim": 4}, **MIXED),
    # Attention biased by distances that are counted from a 2-d mask, or masked by the layer.
    _model("bloom", "snapshot", {"n_layer": 2, "n_head": 4}, **MIXED),
    _model("falcon", "snapshot", {"alibi": True, "new_decoder_architecture": False}, **MIXED),
    _model("mpt", "snapshot", {"d_model": 32, "n_heads": 4, "n_layers": 2}, **MIXED),
    _model(
        "gpt_neo",
        "snapshot",
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
        },
        **MIXED,
    ),
    # Chunked layers next to full ones.
    _model(
        "llama4_text",
        "snapshot",
        HEAD,
        EXPERTS,
        {"attention_chunk_size": 6, "intermediate_size_mlp": 48, "num_hidden_layers": 4},
        **FLOAT32,
    ),
]

RECURRENT = [
    _model("mamba", "snapshot", {"state_size": 8, "time_step_rank": 4}, **MIXED),
    _model(
        "mamba2",
        "snapshot",
        {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
        **MIXED,
    ),
    _model("falcon_mamba", "snapshot", {"state_size": 8, "time_step_rank": 4}, **MIXED),
    _model("rwkv", "snapshot", {"attention_hidden_size": 32, "context_length": 128}, **MIXED),
    _model(
        "jamba",
        "snapshot",
        {
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
        },
        **FLOAT32,
    ),
    _model("bamba", "snapshot", MAMBA2, {"attn_layer_indices": [1]}, **MIXED),
    _model("falcon_h1", "snapshot", MAMBA2, HEAD, {"mamba_d_ssm": 64}, **MIXED),
    _model(
        "granitemoehybrid",
        "snapshot",
        MAMBA2,
        EXPERTS,
        {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
        **FLOAT32,
    ),
    _model(
        "lfm2",
        "snapshot",
        {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    _model(
        "qwen3_next",
        "snapshot",
        HEAD,
        SMALL_EXPERTS,
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
        **FLOAT32,
    ),
    _model(
        "minimax",
        "snapshot",
        HEAD,
        EXPERTS,
        {"layer_types": ["linear_attention", "full_attention"], "block_size": 4},
        **FLOAT32,
    ),
    # With the default floor under the time step, transformers' one-token and many-token forms of
    # these layers differ from each other, and neither could be compared with the other.
    _model(
        "nemotron_h",
        "snapshot",
        {
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "head_dim": 8,
            "time_step_min": 1e-30,
        },
        **MIXED,
    ),
    _model(
        "zamba2",
        "snapshot",
        {
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "n_mamba_heads": 8,
            "mamba_headdim": 8,
            "chunk_size": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "attention_head_dim": 16,
            "attention_hidden_size": 64,
            "num_key_value_heads": 4,
            "num_mem_blocks": 1,
            "use_mem_rope": True,
            "adapter_rank": 4,
            "time_step_min": 1e-30,
        },
        **MIXED,
    ),
    # The state lives in the modules, so there is one for all rows and none to keep.
    _model(
        "recurrent_gemma",
        "recompute",
        HEAD,
        {"attention_window_size": 8, "lru_width": 32, "block_types": ("recurrent", "attention")},
    ),
]
