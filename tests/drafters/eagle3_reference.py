"""EAGLE-3 in plain torch over whole texts, written from its description, and folders of random
heads in both published layouts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB, WIDTH, NUM_LAYERS = 61, 32, 5  # of the target, as `tiny_heads.tiny_llama` has them
SIZES = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SWITCHES: dict[str, dict[str, Any]] = {
    "none": {},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "all norms": {"fc_norm": True, "norm_before_residual": True, "norm_output": True},
    "llama3": {"rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                              "original_max_position_embeddings": 64}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "own embedding": {"own_embedding": True},
    "full vocabulary": {"draft_vocab_size": VOCAB},
    "four layers read": {"layers": [1, 2, 3, 4]},
    "free head size": {"head_dim": 16},
    "narrower": {"hidden_size": 24, "target_hidden_size": WIDTH, "own_embedding": True},
    "biases": {"attention_bias": True, "bias": True},
    "head norms": {"model_type": "qwen3"},
    "three layers": {"num_hidden_layers": 3, "norm_output": True},
}  # fmt: skip


class Head:
    """A random head: its description, its tensors by their published names, and its function."""

    def __init__(self, seed: int = 0, **changes: Any) -> None:
        self.layers: list[int] = changes.pop("layers", [2, 3, 4])
        own_embedding = changes.pop("own_embedding", False)
        self.config: dict[str, Any] = {**SIZES, "draft_vocab_size": 40, **changes}
        generator = torch.Generator().manual_seed(seed)
        c, width = self.config, self.config["hidden_size"]
        size, kv = c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        state = c.get("target_hidden_size", WIDTH)
        read, inner = len(self.layers) * state, c["num_attention_heads"] * size

        def random(*shape: int) -> Tensor:
            scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.2
            return torch.randn(shape, generator=generator) * scale + (len(shape) == 1)

        t = {"fc.weight": random(width, read), "norm.weight": random(width)}
        t["lm_head.weight"] = random(c["draft_vocab_size"], width) * 2
        if c.get("bias"):
            t["fc.bias"] = random(width) - 1
        if c.get("norm_before_fc"):
            t["input_norm.weight"] = random(read)
        if c.get("fc_norm"):
            t |= {f"fc_norm.{i}.weight": random(state) for i in range(len(self.layers))}
        if own_embedding:
            t["embed_tokens.weight"] = random(c["vocab_size"], width)
        for number in range(c["num_hidden_layers"]):
            at, inputs = f"layers.{number}.", width if number else 2 * width
            norms = ["input_layernorm", "post_attention_layernorm"]
            for norm in norms + ["hidden_norm"] * (number == 0):
                t[f"{at}{norm}.weight"] = random(width)
            if c["model_type"] == "qwen3":
                t |= {f"{at}self_attn.{n}_norm.weight": random(size) for n in "qk"}
            for name, rows, columns in (
                ("self_attn.q_proj", inner, inputs),
                ("self_attn.k_proj", kv, inputs),
                ("self_attn.v_proj", kv, inputs),
                ("self_attn.o_proj", width, inner),
                ("mlp.gate_proj", c["intermediate_size"], width),
                ("mlp.up_proj", c["intermediate_size"], width),
                ("mlp.down_proj", width, c["intermediate_size"]),
            ):
                t[f"{at}{name}.weight"] = random(rows, columns)
                if c.get("attention_bias") and "attn" in name:
                    t[f"{at}{name}.bias"] = random(rows) - 1
        self.ids = torch.arange(VOCAB)
        if c["draft_vocab_size"] < VOCAB:
            kept = torch.randperm(VOCAB, generator=generator)[: c["draft_vocab_size"]]
            self.ids = kept.sort().values
            t["d2t"] = self.ids - torch.arange(len(self.ids))
            t["t2d"] = torch.isin(torch.arange(VOCAB), self.ids)
        self.tensors: dict[str, Tensor] = t

    def steps(
        self, states: Tensor, tokens: Sequence[int], embedding: Tensor, num_own: int
    ) -> list[Tensor]:
        """Logits after the last of tokens (T + 1,), and after each of `num_own` likeliest ones.

        states: (T, F) of the tokens but the last.
        """
        t, c = self.tensors, self.config
        table = t.get("embed_tokens.weight", embedding)
        features, text, found = self.fused(states), list(tokens[1:]), []
        for _ in range(num_own + 1):
            hidden = self._run(features, table[torch.tensor(text)])[-1]
            normed = self._norm(hidden, "norm.weight")
            found.append(normed @ t["lm_head.weight"].T)
            text.append(int(self.ids[found[-1].argmax()]))
            following = normed if c.get("norm_output") else hidden
            features = torch.cat((features, following[None]))
        return found

    def fused(self, states: Tensor) -> Tensor:
        t, c = self.tensors, self.config
        if c.get("norm_before_fc"):
            states = self._norm(states, "input_norm.weight")
        if c.get("fc_norm"):
            pieces = states.chunk(len(self.layers), -1)
            normed = [self._norm(p, f"fc_norm.{i}.weight") for i, p in enumerate(pieces)]
            states = torch.cat(normed, -1)
        return states @ t["fc.weight"].T + t.get("fc.bias", 0)

    def _run(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Outputs (T, D) of the last layer; every entry sees those before it."""
        at = "layers.0."
        normed = self._norm(features, f"{at}hidden_norm.weight")
        hidden = normed if self.config.get("norm_before_residual") else features
        inputs = torch.cat((self._norm(embedded, f"{at}input_layernorm.weight"), normed), -1)
        hidden = self._layer(at, inputs, hidden)
        for number in range(1, self.config["num_hidden_layers"]):
            at = f"layers.{number}."
            inputs = self._norm(hidden, f"{at}input_layernorm.weight")
            hidden = self._layer(at, inputs, hidden)
        return hidden

    def _layer(self, at: str, inputs: Tensor, residual: Tensor) -> Tensor:
        c, size = self.config, self.config["head_dim"]
        share = c["num_attention_heads"] // c["num_key_value_heads"]
        q, k, v = (self._product(f"{at}self_attn.{n}_proj", inputs) for n in "qkv")
        gathered = []
        for head in range(c["num_attention_heads"]):
            own = slice(head * size, (head + 1) * size)
            shared = slice(head // share * size, (head // share + 1) * size)
            query = self._turned(q[:, own], f"{at}self_attn.q_norm.weight")
            key = self._turned(k[:, shared], f"{at}self_attn.k_norm.weight")
            scores = query @ key.T / math.sqrt(size)
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(later, -torch.inf).softmax(-1)
            gathered.append(weights @ v[:, shared])
        hidden = residual + self._product(f"{at}self_attn.o_proj", torch.cat(gathered, -1))
        normed = self._norm(hidden, f"{at}post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(self._product(f"{at}mlp.gate_proj", normed))
        mixed = gate * self._product(f"{at}mlp.up_proj", normed)
        return hidden + self._product(f"{at}mlp.down_proj", mixed)

    def _product(self, name: str, inputs: Tensor) -> Tensor:
        return inputs @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def _norm(self, values: Tensor, name: str) -> Tensor:
        size = (values * values).mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        return values / size.sqrt() * self.tensors[name]

    def _turned(self, values: Tensor, norm: str) -> Tensor:
        """Heads (T, d), turned by their places: pairs are a half apart."""
        if norm in self.tensors:
            values = self._norm(values, norm)
        pairs = torch.complex(*values.chunk(2, -1))
        turns, factor = frequencies(self.config)
        angles = torch.arange(len(values))[:, None] * turns
        turned = pairs * torch.polar(torch.full_like(angles, factor), angles)
        return torch.cat((turned.real, turned.imag), -1)

    def save(self, folder: Path, layout: str = "flat", as_bin: bool = False, **more: Any) -> Path:
        """Write it as others would: in `speculators`' layout, or the flat one."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors: Mapping[str, Tensor] = self.tensors
        if layout == "flat":
            tensors = {n.replace("layers.0.", "midlayer."): v for n, v in tensors.items()}
            where = {"eagle_aux_hidden_state_layer_ids": self.layers}
            about = {"architectures": ["LlamaForCausalLMEagle3"], **self.config, **where}
        else:
            outer = {"draft_vocab_size", "norm_before_fc", "fc_norm", "norm_output",
                     "norm_before_residual", "target_hidden_size"}  # fmt: skip
            about = {name: self.config[name] for name in outer & self.config.keys()}
            about |= {
                "speculators_model_type": "eagle3",
                "speculators_version": "0.9.0",
                "norm_before_residual": self.config.get("norm_before_residual", False),
                "eagle_aux_hidden_state_layer_ids": self.layers,
                "transformer_layer_config": {
                    name: value for name, value in self.config.items() if name not in outer
                },
                "speculators_config": {"verifier": {"name_or_path": "somebody/target"}},
            }
        about |= more
        stated = {name: value for name, value in about.items() if value != "left out"}
        (folder / "config.json").write_text(json.dumps(stated))
        if as_bin:
            torch.save(dict(tensors), folder / "pytorch_model.bin")
        else:
            save_file({n: v.contiguous() for n, v in tensors.items()}, folder / "model.safetensors")
        return folder


def frequencies(config: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Turns per place (d / 2,), and the factor of the turned heads, from the published formulas."""
    size, theta = config["head_dim"], config["rope_theta"]
    base = theta ** -(torch.arange(size // 2) * 2 / size)
    rope = config.get("rope_scaling")
    if not rope:
        return base, 1.0
    factor = rope["factor"]
    if rope["rope_type"] == "linear":
        return base / factor, 1.0
    length = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        rounds = length * base / (2 * math.pi)  # turns within the original context
        share = ((rounds - low) / (high - low)).clamp(0, 1)
        return base * share + base / factor * (1 - share), 1.0
    places = [size * math.log(length / (2 * math.pi * fast)) / (2 * math.log(theta))
              for fast in (32, 1)]  # fmt: skip
    first, last = max(math.floor(places[0]), 0), min(math.ceil(places[1]), size - 1)
    ramp = ((torch.arange(size // 2) - first) / max(last - first, 0.001)).clamp(0, 1)
    return base / factor * ramp + base * (1 - ramp), 0.1 * math.log(factor) + 1
