"""The sizes of a drafting network, derived from its target."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Design:
    """Everything needed to build the network; saved with its weights."""

    hidden_size: int  # D, the target's own
    num_heads: int
    num_kv_heads: int
    head_size: int
    mlp_size: int
    layers: tuple[int, ...]  # input: the target's hidden states after these layers
    num_tokens: int  # Vd, the size of the draft vocabulary
    rope_theta: float
    norm_eps: float

    @property
    def num_features(self) -> int:
        """F: the number of hidden values the target gives per token."""
        return len(self.layers) * self.hidden_size

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the network's weights, as `Network.state_dict` names them."""
        width, inner = self.hidden_size, self.num_heads * self.head_size
        shared = self.num_kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "norm_layers": (self.num_features,),
            "fuse": (width, self.num_features),
            "norm_feature": (width,),
            "norm_embedding": (width,),
            "qkv": (inner + 2 * shared, 2 * width),
            "output": (width, inner),
            "norm_mlp": (width,),
            "gate_up": (2 * self.mlp_size, width),
            "down": (width, self.mlp_size),
            "norm_head": (width,),
            "head": (self.num_tokens, width),
        }
        return {f"{name}.weight": shape for name, shape in shapes.items()}

    @classmethod
    def after(cls, config: Any, num_tokens: int, mlp_size: int | None = None) -> Design:
        """One decoder layer like those of a target with this transformers configuration."""
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
    def from_dict(cls, saved: dict[str, Any]) -> Design:
        return cls(**{**saved, "layers": tuple(saved["layers"])})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def layers_to_read(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high layers.

    The last layer is left out, because some models return its output after their final norm.
    """
    depths = (num_layers // 5, num_layers // 2, 4 * num_layers // 5, num_layers - 1)
    return tuple(sorted({max(1, layer) for layer in depths}))
