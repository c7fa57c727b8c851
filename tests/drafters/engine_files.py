"""The model files and loaders of vLLM and SGLang, read from unpacked wheels and run on a CPU.

Only their classes of EAGLE-3 heads, the loading of weights and the reading of configurations are
theirs.  What they import is not: fused layers, which need a GPU, are plain torch here.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Optional, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AutoConfig, LlamaConfig, PretrainedConfig


class Norm(nn.Module):
    """Also with what is added before it, as theirs is fused."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = unset(size), eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        normed = nn.functional.rms_norm(total, self.weight.shape, self.weight, self.eps)
        return normed if residual is None else (normed, total)


class Product(nn.Module):
    """A matrix, whose rows may be loaded in parts."""

    def __init__(self, inputs: int, outputs: int, parts: Mapping[Any, int] | None = None) -> None:
        super().__init__()
        self.weight = unset(outputs, inputs)
        self._rows, end = {}, 0
        for name, count in (parts or {}).items():
            self._rows[name] = slice(end, end + count)
            end += count
        if parts:
            self.weight.weight_loader = self._load

    def _load(self, weight: Any, loaded: Any, part: Any = None) -> None:
        rows = self._rows[loaded.shard_id if part is None else part]
        assert weight[rows].shape == loaded.shape
        weight.data[rows] = loaded

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class Table(nn.Module):
    def __init__(self, size: int, width: int, **_: Any) -> None:
        super().__init__()
        self.weight = unset(size, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


class Attention(nn.Module):
    """Over one whole text; `qkv_proj` is set by the layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.total_num_heads = config.num_attention_heads
        self.total_num_kv_heads = config.num_key_value_heads
        self.o_proj = Product(self.total_num_heads * self.head_dim, config.hidden_size)
        self._theta = config.rope_parameters["rope_theta"]

    def forward(self, positions: Tensor, hidden_states: Tensor, forward_batch: Any = None) -> Any:
        size, shared = self.head_dim, self.total_num_kv_heads * self.head_dim
        joined = self.qkv_proj(hidden_states)
        parts = joined.split([self.total_num_heads * size, shared, shared], -1)
        q, k, v = (part.view(len(positions), -1, size).transpose(0, 1)[None] for part in parts)
        angles = positions[:, None] * self._theta ** -(torch.arange(size // 2) * 2 / size)

        def turned(x: Tensor) -> Tensor:
            low, high = x.chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

        mixed = nn.functional.scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=True
        )
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))


class Mlp(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, *_: Any) -> None:
        super().__init__()
        inner = intermediate_size
        self.gate_up_proj = Product(hidden_size, 2 * inner, {0: inner, 1: inner})
        self.down_proj = Product(inner, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(nn.functional.silu(gate) * up)


class Layer(nn.Module):
    """The decoder layer that theirs begin with."""

    def __init__(self, first: Any, *_: Any, config: Any = None, **__: Any) -> None:
        super().__init__()
        config = first if config is None else config
        self.hidden_size = config.hidden_size
        self.self_attn = Attention(config)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)


class Logits(nn.Module):
    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, head: Any, x: Tensor) -> Tensor:
        return x @ head.weight.T


class Quiet:
    """A log that nobody reads."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def unset(*shape: int) -> nn.Parameter:
    """A weight that nothing has been loaded into."""
    return nn.Parameter(torch.full(shape, torch.nan))


def whole(weight: Any, loaded: Any) -> None:
    assert weight.shape == loaded.shape
    weight.data.copy_(loaded)


def joined(hidden: int, size: int, heads: int, shared: int, **_: Any) -> Product:
    rows = {"q": heads * size, "k": shared * size, "v": shared * size}
    return Product(hidden, sum(rows.values()), rows)


SHARED: dict[str, Any] = {
    "torch": torch, "nn": nn, "LlamaConfig": LlamaConfig, "RMSNorm": Norm, "LlamaMLP": Mlp,
    "QKVParallelLinear": joined, "VocabParallelEmbedding": Table, "ParallelLMHead": Table,
    "LogitsProcessor": Logits, "LlamaForCausalLM": nn.Module, "Iterable": Iterable, "copy": copy,
    "Optional": Optional, "Tuple": tuple, "TYPE_CHECKING": False, "QuantizationConfig": Any,
    "default_weight_loader": whole, "PreTrainedConfig": PretrainedConfig, "os": os, "Any": Any,
    "fields": dataclasses.fields, "without_trust_remote_code": lambda given: given,
    "__name__": __name__,
}  # fmt: skip


def run(file: Path, names: set[str] | None = None, **given: Any) -> dict[str, Any]:
    """Run a file without its imports, or some of its definitions; everything that it defines."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kept = [ast.parse("from __future__ import annotations").body[0]]
    for node in tree.body:
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if not is_import and (names is None or getattr(node, "name", None) in names):
            kept.append(node)
    space = {**SHARED, **given}
    exec(compile(ast.Module(kept, []), str(file), "exec"), space)
    return space


def vllm_config(vllm: Path, folder: Path) -> Any:
    """What vLLM makes of config.json, in either layout."""
    configs = vllm / "transformers_utils" / "configs"
    if "speculators_model_type" in (folder / "config.json").read_text():
        known = run(configs / "speculators" / "algos.py")
        read = run(configs / "speculators" / "base.py", **{
            name: known[name] for name in ("SUPPORTED_SPECULATORS_TYPES",)
        })  # fmt: skip
        return read["SpeculatorsConfig"].from_pretrained(str(folder))
    read = run(configs / "eagle.py", AutoConfig=AutoConfig, DeepseekV2Config=Any)
    config = LlamaConfig.from_pretrained(folder)
    return read["EAGLEConfig"](config, method="eagle3", model_type="eagle")


def vllm_layers(vllm: Path, config: Any) -> tuple[int, ...]:
    """The states that vLLM takes from the target."""
    file = vllm / "v1" / "worker" / "gpu" / "spec_decode" / "eagle" / "eagle3_utils.py"
    name = "get_eagle3_aux_layers_from_config"
    asked = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=config))
    return tuple(run(file, {name}, SpeculativeConfig=Any)[name](asked))


def vllm_head(vllm: Path, config: Any, num_layers: int, vocab_size: int) -> Any:
    """vLLM's model of a head for such a target, without weights."""
    models = vllm / "model_executor" / "models"
    helpers = {"WeightsMapper", "AutoWeightsLoader", "StageMissingLayer", "PPMissingLayer",
               "process_eagle_weight", "_get_tied_embedding_params", "maybe_prefix"}  # fmt: skip
    loaders = run(
        models / "utils.py", helpers, re=re, itertools=itertools, Callable=Callable,
        Mapping=Mapping, dataclass=dataclasses.dataclass, field=dataclasses.field,
        replace=dataclasses.replace, Literal=Literal, Protocol=Protocol, TypeAlias=TypeAlias,
        logger=Quiet(), supports_any_eagle=lambda model: True,
        support_quantized_model_reload_from_hp_weights=lambda method: method,
    )  # fmt: skip
    drafting = SimpleNamespace(
        draft_model_config=SimpleNamespace(hf_config=config), parallel_drafting=False
    )
    target = SimpleNamespace(
        dtype=torch.float32,
        hf_config=config,
        get_total_num_hidden_layers=lambda: num_layers,
        get_vocab_size=lambda: vocab_size,
    )
    whole_config = SimpleNamespace(speculative_config=drafting, model_config=target)
    defined = run(
        models / "llama_eagle3.py", BaseLlamaDecoderLayer=Layer, init_logger=lambda _: Quiet(),
        ReplicatedLinear=lambda input_size, output_size, **_: Product(input_size, output_size),
        support_torch_compile=lambda **_: lambda made: made,
        get_current_vllm_config=lambda: whole_config, get_draft_quant_config=lambda _: None,
        **{name: loaders[name] for name in helpers},
    )  # fmt: skip
    return defined["Eagle3LlamaForCausalLM"](vllm_config=whole_config)


def sglang_head(sglang: Path, config: Any) -> Any:
    """SGLang's model of a head, without weights."""
    defined = run(
        sglang / "srt" / "models" / "llama_eagle3.py", LlamaDecoderLayer=Layer,
        add_prefix=lambda name, prefix: f"{prefix}.{name}", layer_stack=contextlib.nullcontext,
        DraftParallelSpec=lambda **_: None, DraftTPExecution=SimpleNamespace(SINGLE_GROUP=0),
        get_spec=lambda: SimpleNamespace(speculative_draft_window_size=None),
        get_parallel=lambda: SimpleNamespace(pp_group=None),
    )  # fmt: skip
    return defined["LlamaForCausalLMEagle3"](config)
