"""Tiny targets with MTP layers of their own kind: the layers as transformers' own modules compute
them over whole texts, and checkpoints in the published layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCAB, WIDTH, NUM_LAYERS, NUM_EXPERTS = 61, 32, 3, 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
GROUPED = EXPERTS | {"n_routed_experts": NUM_EXPERTS, "n_group": 2, "topk_group": 1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "glm": ("Glm4Moe", GROUPED | {"first_k_dense_replace": 1, "use_qk_norm": True}),
    "deepseek": ("DeepseekV3", GROUPED | {
        "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "head_dim": 4}),
    "qwen": ("Qwen3Next", EXPERTS | {
        "num_experts": NUM_EXPERTS, "shared_expert_intermediate_size": 16,
        "layer_types": ["full_attention"] * NUM_LAYERS}),
    "qwen hybrid": ("Qwen3Next", EXPERTS | {
        "num_experts": NUM_EXPERTS, "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8}),
    "mimo": ("Qwen2", {}),
}  # fmt: skip
AROUND = {  # where a layer's tensors and its ends lie, and the names of the ends
    "glm": ("model.layers.{3}.", "model.layers.{3}.",
            ("enorm", "hnorm", "eh_proj", "shared_head.norm")),
    "qwen": ("mtp.layers.{0}.", "mtp.",
             ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")),
    "mimo": ("model.mtp_layers.{0}.", "model.mtp_layers.{0}.",
             ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")),
}  # fmt: skip
AROUND |= {"deepseek": AROUND["glm"], "qwen hybrid": AROUND["qwen"]}


def target_of(kind: str) -> Any:
    """A random target, whose norms and routers are far from plain."""
    import transformers

    family, more = KINDS[kind]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**SIZES | more, attn_implementation="sdpa")
    made = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    roughen(made)
    return made


def roughen(module: Any) -> None:
    """Give a module random numbers, those included that begin as zeros or ones."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if name.endswith("inv_freq"):
                continue
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("e_score_correction_bias"):
                value.copy_(noise)
            elif value.dim() == 1:
                value.add_(noise * 0.3)
            else:
                value.copy_(noise / value.shape[-1] ** 0.5)


class Layers:
    """Random MTP layers of a target, as transformers makes and runs them."""

    def __init__(self, kind: str, target: Any, count: int = 1) -> None:
        """kind: one of `KINDS`, which says the layout; the layers are those of the target."""
        modules = pytest.importorskip("transformers.modeling_layers")
        if not hasattr(getattr(modules, "MtpModel", None), "forward_layer"):
            pytest.skip("this release of transformers has no module for MTP layers")
        self.kind, self.target, self.count = kind, target, count
        config = target.config
        kept = dict(vars(config))
        config.num_mtp_layers = count
        config.mtp_layer_types = ["full_attention"] * count
        config.mtp_hidden_states_first = kind == "mimo"
        if "layer_types" in kept:
            config.layer_types = ["full_attention"] * config.num_hidden_layers
        try:
            self.model = modules.MtpModel(target, count).eval()
        finally:
            vars(config).clear()
            vars(config).update(kept)
        roughen(self.model.layers)
        if "qwen" in kind:  # all of its layers share what is around them
            for layer in self.model.layers[1:]:
                for name in ("enorm", "hnorm", "eh_proj", "post_norm"):
                    getattr(layer, name).load_state_dict(
                        getattr(self.model.layers[0], name).state_dict()
                    )

    def steps(
        self, states: Tensor, tokens: Sequence[int], num_own: int, norms_output: bool = True
    ) -> list[Tensor]:
        """Logits after the last of tokens (T + 1,), and after each of `num_own` likeliest ones.

        states: (T, D) of the tokens but the last. Of several layers each makes one guess.
        """
        features, text, found = states[None], torch.tensor([tokens[1:]]), []
        for step in range(num_own + 1):
            number = step if self.count > 1 else 0
            layer = self.model.layers[number]
            norm, layer.use_post_norm = layer.post_norm, False
            with torch.no_grad():
                places = torch.arange(1, text.shape[1] + 1)[None]
                outputs = self.model.forward_layer(number, features, places, None, input_ids=text)
                normed = norm(outputs)
                found.append(self.target.lm_head(normed[0, -1]))
            following = normed if norms_output else outputs
            guess = found[-1].argmax()[None, None]
            if self.count > 1:
                features, text = following, torch.cat((text[:, 1:], guess), 1)
            else:
                features = torch.cat((features, following[:, -1:]), 1)
                text = torch.cat((text, guess), 1)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their published names: every expert by itself."""
        within, around, ends = AROUND[self.kind]
        theirs = dict(zip(("enorm", "hnorm", "eh_proj", "post_norm"), ends, strict=True))
        found = {}
        for number, layer in enumerate(self.model.layers):
            for name, value in layer.state_dict().items():
                first, _, rest = name.partition(".")
                if first != "mtp_block":
                    found[_numbered(around, number) + f"{theirs[first]}.{rest}"] = value
                    continue
                for each, part in _apart(rest, value):
                    found[_numbered(within, number) + each] = part
        return found

    def make_likely(self) -> None:
        """Let the layers often agree with their target: they pass the feature on to the head."""
        width = self.target.config.hidden_size
        is_around_zero = "Next" in type(self.target).__name__
        with torch.no_grad():
            for layer in self.model.layers:
                halves = [torch.zeros(width, width), torch.eye(width)]
                if self.kind == "mimo":
                    halves.reverse()
                layer.eh_proj.weight.copy_(torch.cat(halves, 1))
                for norm in (layer.hnorm, layer.post_norm):
                    norm.weight.fill_(0.0 if is_around_zero else 1.0)
                for name, value in layer.mtp_block.named_parameters():
                    if "o_proj" in name or "down_proj" in name:
                        value.mul_(0.02)

    def save(self, folder: Path, change: Any = None, **stated: Any) -> Path:
        """Write the target and, in a shard of their own, its layers.

        change: alters the tensors of the layers in place.
        """
        self.target.save_pretrained(folder)
        own = self.tensors()
        if change is not None:
            change(own)
        first = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        shards = {"model-00001-of-00002.safetensors": first,
                  "model-00002-of-00002.safetensors": own}  # fmt: skip
        for name, tensors in shards.items():
            whole = {n: v.detach().clone().contiguous() for n, v in tensors.items()}
            save_file(whole, folder / name, metadata={"format": "pt"})
        places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        about = json.loads((folder / "config.json").read_text())
        about.pop("num_mtp_layers", None)
        is_qwen = "qwen" in self.kind
        promise = "mtp_num_hidden_layers" if is_qwen else "num_nextn_predict_layers"
        about |= {promise: self.count} | stated
        (folder / "config.json").write_text(json.dumps(about))
        return folder


def _numbered(name: str, number: int) -> str:
    return re.sub(r"\{(\d)\}", lambda match: str(int(match[1]) + number), name)


def _apart(name: str, value: Tensor) -> list[tuple[str, Tensor]]:
    """A tensor of transformers as the published ones: those of experts one by one."""
    at, _, last = name.rpartition("experts.")
    if last == "gate_up_proj":
        halves = [part.chunk(2) for part in value]
        return [(f"{at}experts.{e}.{n}.weight", part)
                for e, pair in enumerate(halves)
                for n, part in zip(("gate_proj", "up_proj"), pair, strict=True)]  # fmt: skip
    if last == "down_proj" and at:
        return [(f"{at}experts.{e}.down_proj.weight", part) for e, part in enumerate(value)]
    return [(name, value)]
