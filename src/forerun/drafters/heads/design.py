"""The sizes and switches of a drafting network."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

ROTATION = ("frequencies", "rotary_factor")


@dataclass(frozen=True)
class Design:
    """Everything needed to build a drafting network; saved with its weights."""

    kind: ClassVar[str] = "heads"  # as files and commands name it

    hidden_size: int  # D, the target's own
    num_heads: int
    num_kv_heads: int
    head_size: int
    mlp_size: int
    layers: tuple[int, ...]  # input: the target's hidden states after these layers
    num_tokens: int  # Vd, the size of the draft vocabulary
    rope_theta: float
    norm_eps: float
    # What follows differs in published heads only (`eagle3.py`).
    state_norm: Literal["each", "together", "none"] = "each"  # of what is fused: each layer's state
    # by itself, all of them as one vector, or none
    norms_residual: bool = False  # the layer adds to its normed feature
    norms_output: bool = False  # the next feature is the output after the norm of the head
    has_head_norms: bool = False  # of each query and key, before they are rotated
    biases: tuple[str, ...] = ()  # products that add a bias
    is_joined: bool = False  # feature and embedding become one vector before the layer, and no
    # states are fused (`mtp.py`)
    num_layers: int = 1
    target_size: int | None = None  # the target's hidden size, where the network has another
    frequencies: tuple[float, ...] = ()  # (d / 2,): of the rotation; empty: those of `rope_theta`
    rotary_factor: float = 1.0  # of cosines and sines

    @property
    def state_size(self) -> int:
        """The size of one of the target's hidden states."""
        return self.target_size or self.hidden_size

    @property
    def num_features(self) -> int:
        """F: the number of values that the target's hidden states give per token."""
        return len(self.layers) * self.state_size

    @property
    def norm_parts(self) -> int:
        """Into how many pieces the target's hidden values are split for normalising; 0 means no
        norm."""
        return {"each": len(self.layers), "together": 1, "none": 0}[self.state_norm]

    @property
    def is_usual(self) -> bool:
        """Whether the network has the structure of those that we train
        (its rotation may differ)."""
        return all(
            getattr(self, field.name) == field.default or field.name in ROTATION
            for field in fields(self)
            if field.default is not MISSING
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the network's weights, by their names in `Network.state_dict`."""
        width = self.hidden_size
        shapes = self._ends | {"norm_embedding.weight": (width,)}
        shapes |= self._layer(width if self.is_joined else 2 * width)
        for number in range(self.num_layers - 1):
            inside = self._layer(width) | {"norm.weight": (width,)}
            shapes |= {f"deeper.{number}.{name}": shape for name, shape in inside.items()}
        return shapes

    @property
    def _ends(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights before the first and after the last layer."""
        width = self.hidden_size
        products = {"head": (self.num_tokens, width)}
        norms = {"norm_feature": (width,), "norm_head": (width,)}
        if self.is_joined:
            products |= {"join": (width, 2 * width)}
            norms |= {"norm": (width,)}
        else:
            products |= {"fuse": (width, self.num_features)}
        if self.norm_parts:
            norms["norm_layers"] = (self.num_features,)
        return self._named(products, norms)

    def _layer(self, num_inputs: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights of a layer that computes queries, keys and values from
        num_inputs numbers."""
        width, inner = self.hidden_size, self.num_heads * self.head_size
        shared = self.num_kv_heads * self.head_size
        products = {
            "qkv": (inner + 2 * shared, num_inputs),
            "output": (width, inner),
            "gate_up": (2 * self.mlp_size, width),
            "down": (width, self.mlp_size),
        }
        norms = {"norm_mlp": (width,)}
        if self.has_head_norms:
            norms |= {"norm_query": (self.head_size,), "norm_key": (self.head_size,)}
        return self._named(products, norms)

    def _named(
        self, products: dict[str, tuple[int, int]], norms: dict[str, tuple[int]]
    ) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        shapes |= {f"{name}.weight": shape for name, shape in (products | norms).items()}
        shapes |= {f"{name}.bias": products[name][:1] for name in self.biases if name in products}
        return shapes

    def rotation(self) -> tuple[NDArray[np.float32], float]:
        """The rotary embedding: the angle per position of each pair of a head (d / 2,), and the
        factor of its cosine and sine."""
        if self.frequencies:
            return np.array(self.frequencies, np.float32), self.rotary_factor
        half = self.head_size // 2
        exponents = np.arange(half, dtype=np.float32) / np.float32(half)
        return (self.rope_theta**-exponents).astype(np.float32), self.rotary_factor

    @classmethod
    def after(cls, config: Any, num_tokens: int, mlp_size: int | None = None) -> Self:
        """A design of one decoder layer with the proportions of a target with this transformers
        configuration."""
        heads, width = config.num_attention_heads, config.hidden_size
        inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
        rope = getattr(config, "rope_parameters", None) or {}
        return cls(
            hidden_size=width,
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or width // heads,
            mlp_size=mlp_size or inner or 4 * width,
            layers=layers_to_read(config.num_hidden_layers),
            num_tokens=min(num_tokens, config.vocab_size),
            rope_theta=float(rope.get("rope_theta", 10_000.0)),
            norm_eps=float(getattr(config, "rms_norm_eps", 1e-5)),
        )

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        lists = {name: tuple(value) for name, value in saved.items() if isinstance(value, list)}
        return cls(**saved | lists)

    def to_dict(self) -> dict[str, Any]:
        """All fields that differ from their defaults."""
        pairs = [(field, getattr(self, field.name)) for field in fields(self)]
        return {field.name: value for field, value in pairs if value != field.default}


@dataclass(frozen=True)
class BlockDesign(Design):
    """The sizes and switches of a network that makes all guesses of a round in one pass."""

    kind: ClassVar[str] = "block"

    block_size: int = 8  # entries of a pass: the newest token of the text, then masks
    mask_token: int = 0  # the target's id whose embedding a mask has
    anchor_guesses: bool = True  # the newest token's own entry makes the first guess
    # What follows differs in published networks only (`block/dflash.py`).
    conv_taps: int = 0  # entries that a local convolution reads (DFlash2); 0: there is none
    conv_group: int = 1  # channels that share the part of a coefficient that depends on the entry
    selector_rank: int = 0  # values of an entry that a selector reads; 0: there is none
    embedding_scale: float = 1.0  # of the embeddings of a block

    @property
    def num_guesses(self) -> int:
        """The number of guesses that one pass makes."""
        return self.block_size - (not self.anchor_guesses)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the network's weights, by their names in `BlockNetwork.state_dict`."""
        width, shapes = self.hidden_size, dict(self._ends)
        inside = self._layer(width) | {"norm.weight": (width,)}
        for name in ("conv_attention", "conv_mlp") if self.conv_taps else ():
            inside[f"{name}.base"] = (2, self.conv_taps, width)
            inside[f"{name}.kernel.weight"] = (2 * self.conv_taps * width // self.conv_group, width)
        for number in range(self.num_layers):
            shapes |= {f"layers.{number}.{name}": shape for name, shape in inside.items()}
        if self.selector_rank:
            shapes["selector.weight"] = (self.selector_rank, width)
        return shapes


def layers_to_read(num_layers: int) -> tuple[int, ...]:
    """The target's layers to read by default: some low, middle and high ones.

    The last layer is left out, because some models return its output after their final norm.
    """
    depths = (num_layers // 5, num_layers // 2, 4 * num_layers // 5, num_layers - 1)
    return tuple(sorted({max(1, layer) for layer in depths}))


DESIGNS: dict[str, type[Design]] = {design.kind: design for design in (Design, BlockDesign)}
