"""A target and a draft with the cost of real models and an agreement that can be set.

The draft is the first two layers of the target under the same embedding and head.  What the other
layers of the target add to the residual stream is scaled: the smaller, the more the two agree,
while the target still pays for every layer.
"""

from __future__ import annotations

from typing import Any

import torch

DRAFT_LAYERS = 2
SIZES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "small": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1024,
    },
}


class Pair:
    """Two transformers models on the GPU, in bfloat16.

    about: what they are, for the JSON of a benchmark.
    """

    def __init__(self, size: str = "8b", device: str = "cuda") -> None:
        torch.manual_seed(0)
        self.about = {
            "size": size, **SIZES[size], "weights": "random, bfloat16", "draft_layers": DRAFT_LAYERS
        }  # fmt: skip
        self.target = _make(SIZES[size], device)
        for parameter in self.target.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, 0, 0.02)
        self.target.model.embed_tokens.weight.data.mul_(50)
        self.target.lm_head.weight.data.mul_(4)
        self.draft = _make(SIZES[size] | {"num_hidden_layers": 1}, device)
        self.draft.config.num_hidden_layers = DRAFT_LAYERS
        self.draft.model.layers = self.target.model.layers[:DRAFT_LAYERS]
        self.draft.model.embed_tokens = self.target.model.embed_tokens
        self.draft.model.norm = self.target.model.norm
        self.draft.lm_head = self.target.lm_head
        self._scale = 1.0

    @torch.no_grad()
    def agree(self, wanted: float) -> float:
        """Set how much the two agree, and measure it."""
        low, high = 0.0, 0.5
        for _ in range(9):
            self._set((low + high) / 2)
            if self.agreement() > wanted:
                low = self._scale
            else:
                high = self._scale
        return self.agreement()

    @torch.no_grad()
    def agreement(self, count: int = 256) -> float:
        """Mean of sum(min(p, q)) over positions: how often `ratio` accepts a token."""
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(0, self.target.config.vocab_size, (1, count), generator=generator)
        ids = ids.to(self.target.device)
        p, q = (model(ids).logits.float().softmax(-1) for model in (self.target, self.draft))
        return float(torch.minimum(p, q).sum(-1).mean())

    def _set(self, scale: float) -> None:
        for layer in self.target.model.layers[DRAFT_LAYERS:]:
            for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
                module.weight.data.mul_(scale / self._scale)
        self._scale = scale


def _make(sizes: dict[str, int], device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **sizes,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
