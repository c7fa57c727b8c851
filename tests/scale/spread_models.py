"""Tiny models in folders, for ranks to load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

TEXTS = ["the cat sat on the mat", "what is the capital of France? Paris."]
COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # large, so that every layer moves the logits
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 8},
    "gemma3_text": {  # windows and whole texts in turn, one table for both ends
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def tokenizer() -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=281,  # odd: one rank holds a token more than the other
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")


def save_model(kind: str, folder: Path, **changes: Any) -> str:
    """A random model of a kind, with a tokenizer."""
    words = tokenizer()
    torch.manual_seed(0)
    options = {**COMMON, **KINDS.get(kind, {}), **changes, "vocab_size": len(words)}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)
