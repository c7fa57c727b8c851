"""A Llama in a GGUF file, rewritten as a folder that transformers loads in a moment.

transformers can read the file itself, but takes half a minute every time, wants accelerate, and
splits numbers unlike the model's own tokenizer.  De-quantising to float32 loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm.auto import tqdm
from transformers import LlamaConfig, PreTrainedTokenizerFast

from forerun.arrays import HostArray

BAR = "{desc}: {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"
CONTROL = 3  # the type GGUF gives to special tokens

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
"""What llama.cpp calls the parts of a layer, and what transformers calls them."""


def convert(source: Path, folder: Path, title: str) -> None:
    """Write the configuration, tokenizer and weights of `source` into `folder`."""
    size = source.stat().st_size
    # The header's 98,000 strings take as long to read as all the weights.
    with tqdm(desc=title, total=2 * size, bar_format=BAR, disable=None) as bar:
        reader = GGUFReader(source)
        bar.update(size)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(fields)
        config.save_pretrained(folder)
        _tokenizer(fields).save_pretrained(folder)
        weights = {}
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            if ".attn_q." in tensor.name:
                values = _halved(values, config.num_attention_heads)
            elif ".attn_k." in tensor.name:
                values = _halved(values, config.num_key_value_heads)
            weights[_name(tensor.name)] = values
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
    """Byte-level BPE where every digit stands alone, which is what GGUF calls "smollm"."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    core.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    core.add_special_tokens([AddedToken(token, normalized=False) for token in special])

    def token(role: str) -> str:
        index: int = fields[f"tokenizer.ggml.{role}_token_id"]
        return tokens[index]

    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=token("bos"),
        eos_token=token("eos"),
        pad_token=token("padding"),
        unk_token=token("unknown"),
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
    )


def _name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    *layer, part, kind = name.split(".")
    place = f"layers.{layer[1]}." if layer else ""
    return f"model.{place}{NAMES[part]}.{kind}"


def _halved(weight: HostArray, num_heads: int) -> HostArray:
    """Rows of each head from rotary pairs side by side, llama.cpp's order, to two halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
