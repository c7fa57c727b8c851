"""An MTP layer in plain torch over whole texts, written from its description, in every layout."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from eagle3_reference import SIZES, Head
from safetensors.torch import load_file, save_file
from torch import Tensor

# The projection, the norms of embedding, hidden state and output, and the decoder layer.
NAMES = {
    "deepseek": ("model.layers.5.eh_proj", "model.layers.5.enorm", "model.layers.5.hnorm",
                 "model.layers.5.shared_head.norm", "model.layers.5."),
    "qwen": ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm",
             "mtp.layers.0."),
    "mimo": ("model.mtp_layers.0.input_proj", "model.mtp_layers.0.token_layernorm",
             "model.mtp_layers.0.hidden_layernorm", "model.mtp_layers.0.final_layernorm",
             "model.mtp_layers.0."),
    "speculators": ("mtp_layers.0.input_proj", "mtp_layers.0.token_layernorm",
                    "mtp_layers.0.hidden_layernorm", "mtp_layers.0.final_layernorm",
                    "mtp_layers.0."),
}  # fmt: skip
STATED = {"deepseek": "num_nextn_predict_layers", "qwen": "mtp_num_hidden_layers",
          "mimo": "num_nextn_predict_layers"}  # fmt: skip


class Layer(Head):
    """A random layer: its tensors by their published names, and its function."""

    def __init__(self, layout: str, seed: int = 0, **changes: Any) -> None:
        self.layout = layout
        self.config: dict[str, Any] = {**SIZES, **changes}
        generator = torch.Generator().manual_seed(seed)
        c, (join, *norms, at) = self.config, NAMES[layout]
        width, size = c["hidden_size"], c["head_dim"]
        inner, kv = (c[f"num_{n}_heads"] * size for n in ("attention", "key_value"))

        def random(*shape: int) -> Tensor:
            scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.2
            return torch.randn(shape, generator=generator) * scale + (len(shape) == 1)

        t = {f"{name}.weight": random(width) for name in norms}
        t |= {f"{at}{n}_layernorm.weight": random(width) for n in ("input", "post_attention")}
        t[f"{join}.weight"] = random(width, 2 * width)
        if c["model_type"] == "qwen3":
            t |= {f"{at}self_attn.{n}_norm.weight": random(size) for n in "qk"}
        for name, rows, columns in (
            ("self_attn.q_proj", inner, width),
            ("self_attn.k_proj", kv, width),
            ("self_attn.v_proj", kv, width),
            ("self_attn.o_proj", width, inner),
            ("mlp.gate_proj", c["intermediate_size"], width),
            ("mlp.up_proj", c["intermediate_size"], width),
            ("mlp.down_proj", width, c["intermediate_size"]),
        ):
            t[f"{at}{name}.weight"] = random(rows, columns)
            if c.get("attention_bias") and name[10:11] in "qkv" and "attn" in name:
                t[f"{at}{name}.bias"] = random(rows) - 1
        self.tensors: dict[str, Tensor] = t

    def steps(  # type: ignore[override]
        self,
        states: Tensor,
        tokens: Sequence[int],
        target: Any,
        num_own: int,
        norms_output: bool = True,
    ) -> list[Tensor]:
        """Logits after the last of tokens (T + 1,), and after each of `num_own` likeliest ones.

        states: (T, D) of the tokens but the last.
        """
        table = target.get_input_embeddings().weight.detach()
        head = target.get_output_embeddings().weight.detach()
        join, embedded, feature, last, at = NAMES[self.layout]
        features, text, found = states, list(tokens[1:]), []
        for _ in range(num_own + 1):
            halves = [self._norm(table[torch.tensor(text)], f"{embedded}.weight"),
                      self._norm(features, f"{feature}.weight")]  # fmt: skip
            if self.layout == "mimo":
                halves.reverse()
            joined = torch.cat(halves, -1) @ self.tensors[f"{join}.weight"].T
            inputs = self._norm(joined, f"{at}input_layernorm.weight")
            hidden = self._layer(at, inputs, joined)[-1]
            normed = self._norm(hidden, f"{last}.weight")
            found.append(normed @ head.T)
            text.append(int(found[-1].argmax()))
            following = normed if norms_output else hidden
            features = torch.cat((features, following[None]))
        return found

    def save(self, folder: Path, **stated: Any) -> Path:  # type: ignore[override]
        """Write it into a folder of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"architectures": ["MTPModel"], **self.config, "num_hidden_layers": 5, **stated}
        if self.layout == "speculators":
            layer = {name: about.pop(name) for name in self.config}
            about |= {"speculators_model_type": "mtp", "transformer_layer_config": layer}
        (folder / "config.json").write_text(json.dumps(about))
        save_file(
            {n: v.contiguous() for n, v in self.tensors.items()}, folder / "model.safetensors"
        )
        return folder

    def save_within(self, folder: Path, target: Any, **more: Tensor) -> Path:
        """Write it into the files of its target: its tensors and their neighbours in a shard of
        their own, and an index."""
        target.save_pretrained(folder)
        first = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        second = {**self.tensors, "model.norm.weight": first.pop("model.norm.weight"), **more}
        shards = {"model-00001-of-00002.safetensors": first,
                  "model-00002-of-00002.safetensors": second}  # fmt: skip
        for name, tensors in shards.items():
            whole = {n: v.contiguous() for n, v in tensors.items()}
            save_file(whole, folder / name, metadata={"format": "pt"})
        places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        about = json.loads((folder / "config.json").read_text())
        about |= {STATED[self.layout]: 1}
        (folder / "config.json").write_text(json.dumps(about))
        return folder


class Likely(Layer):
    """A layer that often agrees with its target: it passes the feature on to the head."""

    def __init__(self, layout: str, **changes: Any) -> None:
        super().__init__(layout, **changes)
        join, _, feature, last, at = NAMES[layout]
        t, width = self.tensors, self.config["hidden_size"]
        halves = [torch.zeros(width, width), torch.eye(width)]
        if layout == "mimo":
            halves.reverse()
        t[f"{join}.weight"] = torch.cat(halves, 1)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            t[f"{at}{name}.weight"] *= 0.05
        for name in (feature, last):
            t[f"{name}.weight"] = torch.ones(width)
