"""A Llama in a GGUF file, rewritten as a folder that transformers loads at once.

transformers can read the file itself, but takes half a minute every time, wants accelerate, and
shows nothing meanwhile.  Weights are de-quantised to float32, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm.auto import tqdm
from transformers import LlamaConfig, PreTrainedTokenizerFast

CONTROL = 3  # the GGUF token type of special tokens
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""What llama.cpp calls the parts, and what transformers calls them."""


def convert(source: Path, folder: Path, title: str) -> None:
    """Write config, tokenizer and weights of `source` into an existing folder."""
    with tqdm(
        total=source.stat().st_size, desc=title, unit="B", unit_scale=True, disable=None
    ) as bar:
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(fields)
        config.save_pretrained(folder)
        _tokenizer(fields).save_pretrained(folder)
        weights = {}
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            if ".attn_q." in tensor.name:
                values = _interleaved(values, config.num_attention_heads)
            elif ".attn_k." in tensor.name:
                values = _interleaved(values, config.num_key_value_heads)
            weights[_name(tensor.name)] = np.ascontiguousarray(values, dtype=np.float32)
            bar.update(tensor.n_bytes)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        bar.update(bar.total - bar.n)


def _config(fields: Mapping[str, Any]) -> Any:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )


def _tokenizer(fields: Mapping[str, Any]) -> Any:
    """Byte-level BPE with single digits, which is what GGUF calls "smollm"."""
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    kinds: Sequence[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    core.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
        **{
            f"{ours}_token": tokens[fields[f"tokenizer.ggml.{its}_token_id"]]
            for ours, its in names.items()
        },
    )


def _name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    *layer, part, kind = name.split(".")
    place = f"layers.{layer[1]}." if layer else ""
    return f"model.{place}{NAMES[part]}.{kind}"


def _interleaved(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's order of the rotary pairs: it keeps the two halves of a pair adjacent."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
