"""Converts a GGUF file to a folder that transformers loads in a moment.

transformers can read some of these files itself, but takes half a minute every time, needs
accelerate, and splits numbers unlike the models' own tokenizers.  Converting weights to float32
loses nothing.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM

from forerun.base.arrays import HostArray
from forerun.base.errors import ForerunError, InputError, explain, notice
from forerun.gguf.config import architecture, config_of
from forerun.gguf.file import LAYER, GgufFile, Tensor, read_gguf
from forerun.gguf.tokenizer import tokenizer_of

BAR = "{desc}: {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"
SHARD = 2 << 30  # bytes of weights that are in memory at a time

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


def convert(source: Path, folder: Path, title: str) -> None:
    """Write the configuration, tokenizer and weights of `source` into `folder`.

    title: the text of the progress bar.  Raises InputError or UnsupportedError for a file that is
    damaged or of another architecture.
    """
    file = read_gguf(source)
    with _explaining(file):
        config = config_of(file)
        tensors = _renamed(file)
        _check(file, config, tensors)
        tokenizer = tokenizer_of(file, config.max_position_embeddings)
    needed = sum(map(_num_bytes, tensors.values()))
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(f"it needs {needed >> 20:,} MB, and {free >> 20:,} MB are free")
    if not sys.stderr.isatty():  # no bar is shown
        notice(f"converting {title}, once")
    config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    total = sum(len(tensor.data) for tensor in tensors.values())
    with tqdm(desc=f"Converting {title}, once", total=total, bar_format=BAR, disable=None) as bar:
        places = {}
        for number, names in enumerate(_shards(tensors)):
            weights = {}
            for name in names:
                with _explaining(file):
                    weights[name] = np.ascontiguousarray(_values(file, config, tensors[name]))
                bar.update(len(tensors[name].data))
            shard = f"model-{number + 1}.safetensors"
            save_file(weights, folder / shard, metadata={"format": "pt"})
            places.update(dict.fromkeys(names, shard))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@contextmanager
def _explaining(file: GgufFile) -> Iterator[None]:
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


def _shards(tensors: dict[str, Tensor]) -> Iterator[list[str]]:
    """Lists of tensor names: each list has at most SHARD bytes, or one larger tensor."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + _num_bytes(tensor) > SHARD:
            yield names
            names, size = [], 0
        names.append(name)
        size += _num_bytes(tensor)
    yield names


def _num_bytes(tensor: Tensor) -> int:
    """The size of a tensor in float32."""
    return 4 * math.prod(tensor.shape)


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

    An unknown name stays as it is; `_check` refuses it.
    """
    names = GEMMA_NAMES if architecture(file) == "gemma3" else NAMES
    place, rest = "", name
    if layer := LAYER.fullmatch(name):
        place, rest = f"model.layers.{layer[1]}.", layer[2]
    part, _, kind = rest.rpartition(".")
    return f"{place}{names[part]}.{kind}" if part in names else name


def _check(file: GgufFile, config: Any, tensors: dict[str, Tensor]) -> None:
    """Raise InputError if names or shapes of tensors are not those of the architecture."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes == expected:
        return
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


def _values(file: GgufFile, config: Any, tensor: Tensor) -> HostArray:
    """The values of a tensor in the order and form of transformers."""
    values, kind = tensor.values(), architecture(file)
    if not np.isfinite(values).all():
        wrong = "The weights of the GGUF file are damaged: some are not finite."
        cure = "Download the file again, or convert the model anew."
        raise InputError(explain(wrong, f"{tensor.name} in {str(file.path)!r}", cure))
    if kind == "gemma3" and "_norm." in tensor.name:
        return values - np.float32(1)  # transformers adds 1
    if kind == "llama" and ".attn_q." in tensor.name:
        return _halved(values, config.num_attention_heads)
    if kind == "llama" and ".attn_k." in tensor.name:
        return _halved(values, config.num_key_value_heads)
    return values


def _halved(weight: HostArray, num_heads: int) -> HostArray:
    """Reorder the rows of each head from llama.cpp's order, in which the two numbers of a rotary
    pair are neighbours, to that of transformers, in which they lie in two halves."""
    pairs = weight.reshape(num_heads, len(weight) // num_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)
