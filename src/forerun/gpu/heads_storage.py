"""A drafting network on the device, with its keys and values and the features of its target.

It is one layer like those of a target (`gpu/forward.py`), but the input of its queries, keys and
values is a feature and an embedding side by side.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import triton

from forerun.drafters.heads.network import Network
from forerun.gpu.attention import AttentionScratch, Cache
from forerun.gpu.forward import Kernels, add
from forerun.gpu.kernels.heads import keep_features, norm_states
from forerun.gpu.pool import DevicePages
from forerun.gpu.shapes import MOST_TOKENS, Inputs, PassShape
from forerun.gpu.storage import Storage
from forerun.gpu.weights import Layer, Weights
from forerun.kernels.early_launch import dependent_launch
from forerun.models.families import Family, Form


class HeadsStorage(Storage):
    """Memory for the rows of one network, which use the same pages as the target's.

    features: (pages, slots of a page, D), one for every token that the target has processed.
    columns: (Vd,), the target's id of each token of the network.
    """

    def __init__(
        self, network: Network, embedding: Any, tokens: Any, pages: DevicePages, owner: Any
    ) -> None:
        self.network = network
        weights = _weights(network, embedding)
        device = weights.head.device
        super().__init__(weights, pages, owner)
        size = weights.form.num_key_heads, pages.size, weights.form.head_size
        sizes = [(1, *size), (1, *size), (1, pages.size, weights.hidden)]
        self._paged = pages.pool.part(network, sizes)
        self.vocab_size = int(embedding.shape[0])  # of the target
        self.columns = torch.as_tensor(tokens).to(device, torch.int32)
        norms = network.norm_feature.weight, network.norm_embedding.weight
        self.norms = torch.stack([norm.data for norm in norms])
        like, width = self.scratch.x, weights.hidden
        self.joined = like.new_zeros((MOST_TOKENS, 2 * width))  # inputs of entries
        self.fused = like.new_zeros((MOST_TOKENS, width))
        self._normed_states = like.new_zeros((MOST_TOKENS, network.design.num_features))
        self._zeros = like.new_zeros((MOST_TOKENS, width))

    @cached_property
    def cache(self) -> Cache:
        pool = self.pages.pool
        pool.make()
        angles = _angles(self.network, self.columns.device, pool.num_positions)
        keys, values, _ = self._paged.tensors
        return Cache(keys, values, self.pages.table, *angles)

    @property
    def features(self) -> Any:
        self.pages.pool.make()
        return self._paged.tensors[2][0]

    @property
    def kept(self) -> dict[str, Any]:
        """The addresses of the stored features, for kernels."""
        table = self.pages.table
        return {"features": self.features, "pages": table, "width": table.shape[1],
                "PAGE": self.pages.size}  # fmt: skip

    @property
    def wide(self) -> dict[str, int]:
        """The padded sizes that kernels are compiled for."""
        return {"K": self.weights.hidden, "KP": int(triton.next_power_of_2(self.weights.hidden))}

    def logits(self, use: str, count: int) -> Any:
        """Allocate rows of logits over the target's vocabulary, which stay -inf for tokens that the
        network does not have."""
        key = use, 1 << max(count - 1, 0).bit_length()
        if key not in self._logits:
            size = key[1], self.vocab_size
            self._logits[key] = torch.full(size, -torch.inf, device=self.weights.head.device)
        return self._logits[key][:count]

    def narrow_logits(self, count: int) -> Any:
        """Allocate rows of logits over the network's own vocabulary, (count, Vd)."""
        return super().logits("narrow", count)

    def fuse(self, states: Any, num_tokens: int) -> None:
        """Queue the computation of features from hidden states (M, F); they go to `fused` (M,
        D)."""
        network, eps = self.network, self.weights.eps
        num_layers = len(network.design.layers)
        norm_states[(num_tokens, num_layers)](
            states, network.norm_layers.weight, self._normed_states, eps, num_warps=4, **self.wide,
            **dependent_launch(self.columns.device),
        )  # fmt: skip
        norm = network.norm_mlp.weight  # the inputs of a following norm are not read
        add("out", num_tokens, self._normed_states, network.fuse.weight, self._zeros, norm,
            self.fused, self.scratch)  # fmt: skip

    def keep(self, inputs: Inputs, first: int = 0) -> None:
        """Queue the copy of new features, from a first token on, to the places of their rows."""
        count = inputs.shape.num_tokens - first
        keep_features[(count,)](
            self.fused[first:], inputs.rows[first:], inputs.slots[first:], num_warps=4,
            **self.kept, **self.wide,
        )  # fmt: skip

    def project(self, inputs: Inputs, num_tokens: int) -> None:
        """Queue the keys and values of the first entries, whose inputs are already joined."""
        kernels = self._kernels(inputs, inputs.shape._replace(num_tokens=num_tokens))
        kernels.project(0, self.joined, self.scratch.no_squares)

    def _kernels(
        self, inputs: Inputs, shape: PassShape, attention: AttentionScratch | None = None
    ) -> Kernels:
        """The kernels of a pass whose inputs are written by the kernel before it."""
        return Kernels(
            self.weights, shape, inputs, self.cache, self.scratch, attention, early=False
        )

    def finish(
        self, inputs: Inputs, attention: AttentionScratch | None, logits: Any, features: Any = None
    ) -> None:
        """Queue a draft step for entries whose inputs are joined: compute the network's outputs,
        which go to `scratch.x`, and the logits (N, V) or (N, Vd) of the tokens that follow.

        features: of the entries; None: they are in `scratch.x`.
        """
        kernels = self._kernels(inputs, inputs.shape, attention)
        kernels.layer(0, self.joined, self.scratch.no_squares, self.weights.norm, features)
        kernels.head(logits, None if logits.shape[1] == len(self.columns) else self.columns)


def _weights(network: Network, embedding: Any) -> Weights:
    """The network as the weights of a model with one layer."""
    design = network.design
    layer = Layer(
        qkv=network.qkv.weight.data, out=network.output.weight.data,
        gate_up=network.gate_up.weight.data, down=network.down.weight.data,
        mlp_norm=network.norm_mlp.weight.data,
    )  # fmt: skip
    return Weights(
        layers=(layer,),
        embedding=embedding,
        head=network.head.weight.data,
        norm=network.norm_head.weight.data,
        form=Form(
            num_heads=design.num_heads,
            num_key_heads=design.num_kv_heads,
            head_size=design.head_size,
            attention_scale=design.head_size**-0.5,
            eps=design.norm_eps,
            family=Family("a drafting network"),
        ),
    )


def _angles(network: Network, device: Any, slots: int) -> tuple[Any, Any]:
    """The cosines and sines (1, slots, head size / 2) of a network's rotary embedding."""
    cos, sin = network.angles(torch.arange(slots, device=device))
    return cos.contiguous()[None], sin.contiguous()[None]
