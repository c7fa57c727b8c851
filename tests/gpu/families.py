"""Small random models of the families that the lean GPU pass serves, with what sets them apart."""

from __future__ import annotations

from typing import Any

SLIDING = ["sliding_attention", "full_attention"]
WINDOWS: dict[str, Any] = {"sliding_window": 9, "layer_types": SLIDING, "num_hidden_layers": 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

FAMILY_SHAPES: dict[str, dict[str, Any]] = {
    "mistral, with a window": {"kind": "mistral", "sliding_window": 9},
    "ministral, with a window in some layers": {"kind": "ministral", **WINDOWS},
    "phi3, with fused matrices": {"kind": "phi3", "sliding_window": None},
    "phi3, of whose heads three quarters are turned": {
        "kind": "phi3",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
        },
    },
    "smollm3, with a layer that turns nothing": {
        "kind": "smollm3",
        "num_hidden_layers": 2,
        "no_rope_layers": [1, 0],
    },
    "seed-oss, with biases everywhere": {
        "kind": "seed_oss",
        "attention_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
    },
    "granite, with multipliers": {
        "kind": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.4,
        "logits_scaling": 4.0,
    },
    "olmo2, normed after and over all heads": {"kind": "olmo2"},
    "olmo3, with windows and two rotary tables": {
        "kind": "olmo3",
        **WINDOWS,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    "qwen3-moe, the weights of whose experts add up to one": {
        "kind": "qwen3_moe",
        **EXPERTS,
        "norm_topk_prob": True,
    },
    "qwen3-moe, with a layer that has none": {
        "kind": "qwen3_moe",
        **EXPERTS,
        "num_hidden_layers": 2,
        "mlp_only_layers": [1],
        "num_experts": 5,
    },
    "gpt-oss, with sinks and biases": {
        "kind": "gpt_oss",
        **WINDOWS,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gemma2, with capped attention and logits": {
        "kind": "gemma2",
        **WINDOWS,
        "query_pre_attn_scalar": 4,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3, with norms around and two rotary tables": {"kind": "gemma3_text", **WINDOWS},
}
"""Options of `tiny.build`."""
