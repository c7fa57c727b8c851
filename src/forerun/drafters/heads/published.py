"""Reads the folder of a published draft model: config.json and tensors.

There are two layouts. In the flat one the settings of the layers are in config.json itself; in that
of `speculators` they are in `transformer_layer_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.heads.design import Design

MOST_SIZE = 1 << 24  # of a layer or a vocabulary: what a file states is believed no further
NEWEST = 1  # major versions of `speculators` from this one on are unknown
SIZES = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "draft_vocab_size", "target_hidden_size", "num_hidden_layers", "block_size",
    "num_target_layers",
)  # fmt: skip

LAYER = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "norm_query": ("self_attn.q_norm",),
    "norm_key": ("self_attn.k_norm",),
    "output": ("self_attn.o_proj",),
    "norm_mlp": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""For each weight of a layer, the tensors that it is joined from, one below the other."""
HEAD_NORMS = ("norm_query", "norm_key")


@dataclass
class PublishedFiles:
    """The config.json and the tensors of a draft model, and the checks that all kinds share."""

    folder: Path
    described: Mapping[str, Any]
    tensors: dict[str, NDArray[Any]]
    is_flat: bool = field(init=False)
    settings: dict[str, Any] = field(init=False)  # of the layers
    config: Any = field(init=False)  # the settings as transformers completes them
    noun: ClassVar[str] = "draft model"
    inside: ClassVar[str] = ""  # where config.json has more settings of this kind

    def __post_init__(self) -> None:
        layer = self.described.get("transformer_layer_config")
        self.is_flat = "speculators_model_type" not in self.described
        if not self.is_flat and not isinstance(layer, dict):
            raise self._broken("It has no transformer_layer_config.", f"{layer!r:.60}")
        stated = self.described if self.is_flat else layer or {}
        self.settings = {name: value for name, value in stated.items() if value is not None}
        self._check_sizes()
        self.config = self._completed()

    def _check_sizes(self) -> None:
        """Refuse impossible sizes before anything is allocated with them."""
        for place in (self.described, self.more, self.settings):
            for name in SIZES:
                size = place.get(name)
                most = self.most_layers if name == "num_hidden_layers" else MOST_SIZE
                if size is not None and not (type(size) is int and 0 < size <= most):
                    raise self._broken(f"{name} is no size of its tensors.", f"{size!r:.60}")

    def _completed(self) -> Any:
        """The layers' settings, completed with the defaults of their model family."""
        from transformers import LlamaConfig, Qwen3Config

        family = Qwen3Config if self.settings.get("model_type") == "qwen3" else LlamaConfig
        known = {name for name in self.settings if name not in ("architectures", "model_type")}
        try:
            return family(**{name: self.settings[name] for name in known})
        except Exception as error:  # its checks raise several kinds
            raise self._broken("Its settings contradict one another.", str(error)[:200]) from error

    @property
    def most_layers(self) -> int:
        """The largest plausible `num_hidden_layers`."""
        return len(self.tensors)

    @property
    def more(self) -> Mapping[str, Any]:
        """The settings specific to this kind of draft model; empty if there are none."""
        found = self.described.get(self.inside) or {}
        if not isinstance(found, dict):
            raise self._broken(f"{self.inside} is no object.", f"{found!r:.60}")
        return found

    def switch(self, name: str) -> Any:
        """A setting, looked up at the top, among the settings of this kind, and among those of the
        layer."""
        for place in (self.described, self.more, self.settings):
            if place.get(name) is not None:
                return place[name]
        return None

    def _sizes(self, layer: str) -> dict[str, Any]:
        """The sizes and switches of the decoder layer whose tensor names begin with `layer`, named
        as in `Design`."""
        config, inner = self.config, ("qkv", "output", "gate_up", "down")
        size = config.head_dim or config.hidden_size // config.num_attention_heads
        frequencies, factor = self._rotation(size)
        return {
            "hidden_size": config.hidden_size,
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "head_size": size,
            "mlp_size": config.intermediate_size,
            "rope_theta": 0.0,
            "norm_eps": float(config.rms_norm_eps),
            "has_head_norms": self._promises_head_norms
            or any(f"{layer}{LAYER[name][0]}.weight" in self.tensors for name in HEAD_NORMS),
            "biases": tuple(n for n in inner if f"{layer}{LAYER[n][0]}.bias" in self.tensors),
            "frequencies": frequencies,
            "rotary_factor": factor,
        }

    @property
    def _promises_head_norms(self) -> bool:
        """Whether config.json says that queries and keys are normed. In the flat layout a
        `model_type` says nothing: heads with Llama's layer are called after their target."""
        return not self.is_flat and self.settings.get("model_type") == "qwen3"

    def tokens(self, count: int) -> NDArray[np.int64]:
        """The target's id of each draft token."""
        size, offsets = self.config.vocab_size, self.tensors.get("d2t")
        if offsets is None and count != size:
            wrong = f"The tensor d2t is missing: {count} draft tokens of {size} are not named."
            raise self._broken(wrong, "no d2t")
        own = np.arange(count)
        if offsets is None:
            return own
        if offsets.dtype.kind not in "iu":
            raise self._broken("d2t holds no whole numbers.", offsets.dtype.name)
        if offsets.shape != own.shape:
            raise self._broken("d2t has another length than draft_vocab_size.", offsets.shape)
        ids: NDArray[np.int64] = own + offsets.astype(np.int64)
        if ids.min() < 0 or ids.max() >= size:
            looks = " Its numbers look like ids; what belongs there is id minus place." * bool(
                offsets.min() >= 0 and offsets.max() < size and (np.diff(offsets) > 0).all()
            )
            wrong = f"d2t leads outside the vocabulary of {size}.{looks}"
            raise self._broken(wrong, f"ids from {ids.min()} to {ids.max()}")
        if len(np.unique(ids)) < len(ids):
            raise self._broken("d2t names a token twice.", f"{len(np.unique(ids))} of {len(ids)}")
        return ids

    def embedding(self, design: Design) -> NDArray[np.float32] | None:
        """The head's own embedding (V, D); None if it uses the target's."""
        table = self.tensors.get("embed_tokens.weight")
        if table is None:
            if design.target_size is not None:
                wrong = "embed_tokens.weight is missing, and the target's has another width."
                raise self._broken(wrong, f"{design.hidden_size} and {design.target_size}")
            return None
        self._check_shape("embed_tokens.weight", (self.config.vocab_size, design.hidden_size))
        self._check_finite("embed_tokens.weight")
        return table

    def _rotation(self, head_size: int) -> tuple[tuple[float, ...], float]:
        """The rotary embedding from the head's own settings: angles per position, and their
        factor."""
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        rope = dict(self.config.rope_parameters or {})
        kind = rope.get("rope_type", "default")
        if kind not in ("default", "linear", "llama3", "yarn", "mrope"):
            raise self._unserved(f"its rotation changes with the text ({kind})")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise self._unserved("it turns only part of each head (partial_rotary_factor)")
        if "mrope_section" in rope or kind == "mrope":  # for text, the same as the default
            self.config.rope_parameters = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
        self.config.head_dim = head_size
        rotary = LlamaRotaryEmbedding(self.config)
        return tuple(rotary.inv_freq.float().tolist()), float(rotary.attention_scaling)

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        shape, kind = self.tensors[name].shape, self.tensors[name].dtype
        if kind.kind != "f":
            raise self._unserved(f"its tensors are quantised ({name}: {kind.name})")
        if shape != expected:
            wrong = f"{name} is of another shape than config.json says."
            raise self._broken(wrong, f"{shape} rather than {expected}")

    def _check_finite(self, name: str) -> None:
        if not np.isfinite(self.tensors[name]).all():
            raise self._broken(f"{name} holds NaN or infinity.", name)

    def _check_version(self) -> None:
        """Refuse a newer layout of `speculators`."""
        version = str(self.described.get("speculators_version") or "0").split(".")[0]
        if version.isdigit() and int(version) >= NEWEST:
            wrong = "The folder was written in a newer layout of `speculators` than is known here."
            received = f"speculators_version {self.described['speculators_version']}"
            raise UnsupportedError(explain(wrong, received, "Use a newer version of forerun."))

    def _check_off(self, switches: Mapping[str, str]) -> None:
        """Refuse settings that are switched on. switches: by name, what each one would mean."""
        for name, means in switches.items():
            if self.switch(name):
                raise self._unserved(f"{means} ({name})")

    def _check_layers(self) -> None:
        """Refuse layers of a kind that our networks do not have."""
        if self.config.hidden_act != "silu":
            raise self._unserved(f"its activation is {self.config.hidden_act}")
        kinds = set(self.settings.get("layer_types") or ())
        if kinds - {"full_attention"}:
            raise self._unserved(f"its layers are of other kinds: {', '.join(sorted(kinds))}")

    def _taken(
        self,
        pieces: Mapping[str, list[tuple[str, int]]],
        shapes: Mapping[str, tuple[int, ...]],
        unused: tuple[str, ...],
    ) -> dict[str, NDArray[np.float32]]:
        """Build our weights from the tensors that `pieces` names. Raises if a tensor is missing,
        unknown, not finite or of a wrong shape."""
        named = {name for parts in pieces.values() for name, _ in parts}
        absent = sorted(named - self.tensors.keys())
        if absent:
            some = ", ".join(absent[:3]) + ", ..." * (len(absent) > 3)
            wrong = "Tensors that config.json promises are not in the files."
            raise self._broken(wrong, f"{len(absent)} missing: {some}")
        known = {*named, *unused, "d2t", "embed_tokens.weight"}
        others = sorted(name for name in self.tensors.keys() - known if "inv_freq" not in name)
        if others:
            raise self._unserved(f"config.json says nothing of its tensor {others[0]}")
        made = {}
        for ours, parts in pieces.items():
            for name, rows in parts:
                self._check_shape(name, (rows, *shapes[ours][1:]))
                self._check_finite(name)
            made[ours] = np.concatenate([self.tensors[name] for name, _ in parts])
        return made

    def _broken(self, wrong: str, received: Any) -> InputError:
        return broken(self.noun, self.folder, wrong, received)

    def _unserved(self, reason: str) -> UnsupportedError:
        return unserved(self.noun, self.folder, reason)


def broken(noun: str, folder: Path, wrong: str, received: Any) -> InputError:
    """The refusal of a drafter's files that contradict each other."""
    cure = f"Copy or download {str(folder)!r} again, config.json and weights together."
    return InputError(explain(f"The {noun} cannot be read. {wrong}", received, cure))


def unserved(noun: str, folder: Path, reason: str) -> UnsupportedError:
    """The refusal of a drafter that this version cannot run."""
    wrong = f"This {noun} cannot draft here: {reason}."
    return UnsupportedError(explain(wrong, repr(str(folder)), "Use another one."))


def matched(
    design: Design, names: Mapping[str, tuple[str, ...]]
) -> dict[str, list[tuple[str, int]]]:
    """For each of our weights, the published tensors that it is made of, and their numbers of rows.

    names: by the name of our weight, the names of its tensors, without `.weight` and `.bias`.
    """
    inner, shared = design.num_heads * design.head_size, design.num_kv_heads * design.head_size
    rows = {"qkv": (inner, shared, shared), "gate_up": (design.mlp_size, design.mlp_size)}
    made = {}
    for ours, shape in design.shapes.items():
        stem, _, kind = ours.rpartition(".")
        theirs = names[stem]
        even = (shape[0] // len(theirs),) * len(theirs)
        counts = rows.get(stem.rpartition(".")[2], even)
        made[ours] = [(f"{name}.{kind}", n) for name, n in zip(theirs, counts, strict=True)]
    return made
