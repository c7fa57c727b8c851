"""The model in a GGUF file, in transformers' words: its configuration, weights and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from forerun.base.arrays import HostArray
from forerun.base.errors import ForerunError, InputError, explain
from forerun.gguf.config import architecture, config_of
from forerun.gguf.file import LAYER, GgufFile, Tensor, read_gguf
from forerun.gguf.tokenizer import tokenizer_of

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The names of a model's parts in llama.cpp, and in transformers."""
GEMMA_NAMES = {
    **NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
TABLES = ("rope_freqs.weight",)  # tensors that the configuration has read already


class GgufModel(NamedTuple):
    """The model in a file, with names, shapes and tokens that were checked to belong together."""

    file: GgufFile
    config: Any  # transformers'
    tensors: dict[str, Tensor]  # by their names in transformers
    skeleton: Any  # the transformers model on the device "meta": it has no values
    tokenizer: Any  # None if the file has no vocabulary

    def num_turned_heads(self, name: str) -> int:
        """The number of heads whose rows have llama.cpp's order, in which the two numbers of a
        rotary pair are neighbours; 0 if rows lie as in transformers, in two halves."""
        if architecture(self.file) != "llama":
            return 0
        if ".q_proj." in name:
            return int(self.config.num_attention_heads)
        return int(self.config.num_key_value_heads) if ".k_proj." in name else 0

    def values(self, name: str) -> HostArray:
        """The values of a tensor in the order and form of transformers; InputError if some are not
        finite."""
        tensor = self.tensors[name]
        values = tensor.values()
        if not np.isfinite(values).all():
            raise damaged(tensor)
        if architecture(self.file) == "gemma3" and "_norm." in tensor.name:
            return values - np.float32(1)  # transformers adds 1
        if heads := self.num_turned_heads(name):
            pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
            return pairs.swapaxes(1, 2).reshape(values.shape)
        return values

    def of(self, config: Any, tensors: dict[str, Tensor]) -> GgufModel:
        """The model with another configuration, and the tensors that belong to it."""
        skeleton = _skeleton(self.file, config, tensors)
        return self._replace(config=config, tensors=tensors, skeleton=skeleton)


def damaged(tensor: Tensor) -> InputError:
    """The error for a tensor of which some weights are not finite."""
    wrong = "The weights of the GGUF file are damaged: some are not finite."
    cure = "Download the file again, or convert the model anew."
    return InputError(explain(wrong, f"{tensor.name} in {str(tensor.path)!r}", cure))


def read_model(source: Path) -> GgufModel:
    """The model in a file.  Raises InputError or UnsupportedError for a file that is damaged or of
    another architecture."""
    file = read_gguf(source)
    with explaining(file):
        config = config_of(file)
        tensors = _renamed(file)
        skeleton = _skeleton(file, config, tensors)
        tokenizer = tokenizer_of(file, config.max_position_embeddings)
    return GgufModel(file, config, tensors, skeleton, tokenizer)


@contextmanager
def explaining(file: GgufFile) -> Iterator[None]:
    """Turn errors that transformers or tokenizers raise inside into an InputError about the
    file."""
    try:
        yield
    except (ForerunError, ImportError, OSError, MemoryError):  # these are not about the header
        raise
    except BaseException as error:  # tokenizers raises nothing more special than an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = (str(error).strip().splitlines() or [""])[0]
        raise file.damaged(f"{type(error).__name__}: {said:.200}") from error


def _renamed(file: GgufFile) -> dict[str, Tensor]:
    """The tensors of a file by their names in transformers."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        if name in TABLES:
            continue
        if (own := _name(file, name)) in tensors:
            raise file.damaged(f"two tensors for {own}, of which one is {name!r:.80}")
        tensors[own] = tensor
    return tensors


def _name(file: GgufFile, name: str) -> str:
    """A tensor's name in transformers: blk.3.attn_q.weight becomes
    model.layers.3.self_attn.q_proj.weight.

    An unknown name stays as it is; `_skeleton` refuses it.
    """
    names = GEMMA_NAMES if architecture(file) == "gemma3" else NAMES
    place, rest = "", name
    if layer := LAYER.fullmatch(name):
        place, rest = f"model.layers.{layer[1]}.", layer[2]
    part, _, kind = rest.rpartition(".")
    return f"{place}{names[part]}.{kind}" if part in names else name


def _skeleton(file: GgufFile, config: Any, tensors: dict[str, Tensor]) -> Any:
    """The transformers model without values.  Raises InputError if names or shapes of tensors are
    not those of the architecture."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes == expected:
        return model
    differing = sorted(
        name for name in {**shapes, **expected} if shapes.get(name) != expected.get(name)
    )
    first = differing[0]
    wrong = f"The tensors of the GGUF file are not those of a {type(model).__name__}."
    received = (
        f"{len(differing)} that differ in {str(file.path)!r}, of which the first is {first}: "
        f"{shapes.get(first, 'missing')} where {expected.get(first, 'none')} was expected"
    )
    cure = "Convert the model anew, or load its original checkpoint."
    raise InputError(explain(wrong, received, cure))
