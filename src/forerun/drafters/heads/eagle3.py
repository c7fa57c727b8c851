"""Reads published EAGLE-3 heads: maps their tensors to our weights, and their settings to our
design.

The tensors of the two layouts (`published.py`) differ only in the name of the layer. A head is our
network (`network.py`) with other settings; it joins embedding and feature in the opposite order, so
two halves of columns are swapped.

Where a file leaves something open (which layers are meant, whether an absent field is true), there
are several readings of it; `readings.py` finds the right one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.folders import description_of, kind_of, refuse, tensors_of
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.published import LAYER, PublishedFiles, matched

KIND = "eagle3"
Rotation = tuple[NDArray[np.float32], float]
"""The angle per position of each pair of a head (d / 2,), and the factor of its cosines and
sines."""

FIRST = {"norm_feature": ("hidden_norm",), "norm_embedding": ("input_layernorm",)}
LATER = {"norm": ("input_layernorm",)}
ENDS = {"fuse": ("fc",), "norm_head": ("norm",), "head": ("lm_head",)}

OLD_NAMES = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
    "draft_id_to_target_id": "d2t",
}
UNUSED = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")
"""Tensors that are not used for drafting: a mask of the draft tokens, and parts of the target."""

FALSE_ONLY = {
    "quantization_config": "its tensors are quantised",
    "use_sliding_window": "its layer sees a sliding window",
    "mask_token_id": "it guesses several tokens in one pass (P-EAGLE)",
    "pard_token": "it guesses several tokens in one pass (P-EAGLE)",
    "parallel_drafting": "it guesses several tokens in one pass (P-EAGLE)",
}
"""Settings that must be off, because a head with them computes something else; each with what it
means."""
SWITCHES = {
    "norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output",
    "norm_topk_prob", "rms_norm_eps", "layer_norm_eps", "norm_eps",
}  # fmt: skip
"""The known settings with `norm` in their names; an unknown one is a switch of a newer layout."""


@dataclass(frozen=True)
class Published:
    """A head as read from disk, before its target is known."""

    name: str
    target: Fingerprint  # as far as the files say
    design: Design  # what is certain; its layers may be missing
    weights: Mapping[str, NDArray[np.float32]]  # without a head where the target's is meant
    tokens: NDArray[np.int64]  # (Vd,): the target's id of each draft token
    embedding: NDArray[np.float32] | None  # (V, D); None: the target's
    layers: Sequence[tuple[int, ...]]  # which may be meant; none: the usual ones of any target
    residuals: Sequence[bool]  # what `norm_before_residual` may be
    is_turned_like_target: bool | None  # None: as the file says, or like the target

    def designs(self, num_layers: int, rotation: Rotation | None) -> dict[str, Design]:
        """All possible interpretations of the files for a target with num_layers layers, by their
        descriptions, the likeliest first."""
        usual = (2, num_layers // 2, num_layers - 3)
        layers = [ids for ids in self.layers or [usual] if max(ids) <= num_layers and min(ids) >= 0]
        if not layers or len(set(layers[0])) < len(layers[0]):
            wrong = f"The head reads layers that its target of {num_layers} layers does not have."
            cure = "Use it with the target that it was trained for."
            raise UnsupportedError(explain(wrong, list((self.layers or [usual])[0]), cure))
        rotations = {"its own rotation": self.design.rotation()}
        if rotation is not None and len(rotation[0]) == self.design.head_size // 2:
            if self.is_turned_like_target:
                rotations = {"the target's rotation": rotation}
            elif self.is_turned_like_target is None and _differ(rotation, self.design.rotation()):
                rotations["the target's rotation"] = rotation
        found = {}
        for ids, residual, (turn, (frequencies, factor)) in itertools.product(
            layers, self.residuals, rotations.items()
        ):
            words = [f"states after layers {', '.join(map(str, ids))}"] * (len(layers) > 1)
            words += [f"norm_before_residual {residual}"] * (len(self.residuals) > 1)
            words += [turn] * (len(rotations) > 1)
            found[", ".join(words)] = replace(
                self.design,
                layers=ids,
                norms_residual=residual,
                frequencies=tuple(frequencies.tolist()),
                rotary_factor=float(factor),
            )
        return found


def load(folder: Path) -> Published:
    """Read the head in a folder; raises for one that cannot be read as EAGLE-3."""
    described = description_of(folder)
    kind = kind_of(folder, described)
    if kind != KIND:
        refuse(folder, kind, "an EAGLE-3 head")
    head = Files(folder, described, _renamed(tensors_of(folder)))
    head.check_settings()
    design = head.design()
    weights = head.weights(design)
    verifier = described.get("speculators_config") or {}
    base = (verifier.get("verifier") or {}).get("name_or_path")
    target = Fingerprint(
        str(base or "another model"), design.state_size, None, head.config.vocab_size, ()
    )
    tokens, embedding = head.tokens(design.num_tokens), head.embedding(design)
    if "head.weight" not in weights and head.config.tie_word_embeddings and embedding is not None:
        weights["head.weight"] = embedding[tokens]
    return Published(
        name=str(folder),
        target=target,
        design=design,
        weights=weights,
        tokens=tokens,
        embedding=embedding,
        layers=head.layers(),
        residuals=head.residuals(),
        is_turned_like_target=head.is_turned_like_target(),
    )


class Files(PublishedFiles):
    """The config.json and the tensors of a head."""

    noun = "EAGLE-3 head"
    inside = "eagle_config"

    def check_settings(self) -> None:
        """Refuse a head that computes something other than our network, or has a newer layout."""
        self._check_version()
        self._check_off(FALSE_ONLY)
        eagle = self.more
        for name in (*self.described, *eagle):
            value = self.described.get(name, eagle.get(name))
            if "norm" in name and name not in SWITCHES and value not in (None, False):
                raise self._unserved(f"{name} is {value!r}, a switch that is not known here")
        if eagle.get("use_aux_hidden_state") is False:
            raise self._unserved("it reads the last hidden state alone (use_aux_hidden_state)")
        self._check_layers()
        if "mask_hidden" in self.tensors:
            raise self._unserved("it guesses several tokens in one pass (P-EAGLE: mask_hidden)")

    def design(self) -> Design:
        """The sizes and switches of the network, except for the layers that it reads."""
        norms = [bool(self.switch(name)) for name in ("norm_before_fc", "fc_norm", "use_aux_norm")]
        if norms[0] and any(norms[1:]):
            wrong = "norm_before_fc and fc_norm exclude one another, and both are set."
            raise self._broken(wrong, "both")
        each = any(norms[1:])
        sizes = self._sizes("layers.0.")
        if "fc.bias" in self.tensors:
            sizes["biases"] = ("fuse", *sizes["biases"])
        return Design(
            **sizes,
            layers=self.layers()[0] if self.layers() else (0,) * 3,
            num_tokens=self.switch("draft_vocab_size") or self.config.vocab_size,
            state_norm="together" if norms[0] else "each" if each else "none",
            norms_output=bool(self.switch("norm_output")),
            num_layers=self.config.num_hidden_layers,
            target_size=self._target_size(),
        )

    def layers(self) -> list[tuple[int, ...]]:
        """The lists of target layers that the file may mean, each layer as the number of layers
        before the state; empty if the file does not name any."""
        plain = self.described.get("eagle_aux_hidden_state_layer_ids")
        inside = self.more.get("eagle_aux_hidden_state_layer_ids")
        ids = plain or inside
        if ids is None:
            return []
        if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
            raise self._broken("Its layer numbers are no list of whole numbers.", f"{ids!r:.80}")
        if plain:
            return [tuple(ids)]
        # vLLM counts layers before the state here, SGLang the layer whose output it is.
        return [tuple(each + 1 for each in ids), tuple(ids)]

    def residuals(self) -> tuple[bool, ...]:
        """The possible values of `norm_before_residual`. If it is absent, `speculators` assumes
        false and vLLM true; in flat files it always means false."""
        stated = self.switch("norm_before_residual")
        if stated is not None:
            return (bool(stated),)
        return (False,) if self.is_flat else (False, True)

    def is_turned_like_target(self) -> bool | None:
        """Whether the head uses the target's rotation. None if `speculators` may have dropped the
        scaling of the rotation, as it did until June 2026."""
        rope = self.settings.get("rope_parameters") or self.settings.get("rope_scaling")
        stated = "rope_theta" in self.settings or "rope_theta" in (rope or {})
        if not stated and self.described.get("rope_theta", "") is None:
            return True
        is_scaled = (rope or {}).get("rope_type", (rope or {}).get("type", "default")) != "default"
        return False if self.is_flat or is_scaled else None

    def weights(self, design: Design) -> dict[str, NDArray[np.float32]]:
        """The tensors under the names of `Network.state_dict`."""
        expected = pieces(design)
        if "lm_head.weight" not in self.tensors:
            del expected["head.weight"]
        made = self._taken(expected, design.shapes, UNUSED)
        made["qkv.weight"] = swapped(made["qkv.weight"])
        scale = self.switch("logit_scale")
        if scale is not None and "head.weight" in made:
            made["head.weight"] = made["head.weight"] * np.float32(scale)
        return made

    def _target_size(self) -> int | None:
        size = self.switch("target_hidden_size")
        return None if size in (None, self.config.hidden_size) else int(size)


def pieces(design: Design) -> dict[str, list[tuple[str, int]]]:
    """For each of our weights, the published tensors that it is made of, and their numbers of
    rows."""
    names: dict[str, tuple[str, ...]] = {**ENDS}
    names |= {ours: _within(0, theirs) for ours, theirs in (LAYER | FIRST).items()}
    for number in range(1, design.num_layers):
        below = {ours: _within(number, theirs) for ours, theirs in (LAYER | LATER).items()}
        names |= {f"deeper.{number - 1}.{ours}": theirs for ours, theirs in below.items()}
    if design.state_norm == "each":
        names["norm_layers"] = tuple(f"fc_norm.{index}" for index in range(len(design.layers)))
    elif design.state_norm == "together":
        names["norm_layers"] = ("input_norm",)
    return matched(design, names)


def swapped(columns: NDArray[Any]) -> NDArray[Any]:
    """A weight with the two halves of its columns exchanged: published ones begin with the
    embedding, ours with the feature."""
    return np.concatenate(np.split(columns, 2, axis=1)[::-1], axis=1)


def _within(number: int, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"layers.{number}.{name}" for name in names)


def _renamed(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The tensors under their names in the newer layout.

    SGLang's later layers call the norm before them `hidden_norm`.
    """
    found = {}
    for name, values in tensors.items():
        name = name.removeprefix("model.")
        for old, new in OLD_NAMES.items():
            name = name.replace(old, new)
        found[name] = values
    for name in [name for name in found if name.endswith(".hidden_norm.weight")]:
        other = name.replace("hidden_norm", "input_layernorm")
        if not name.startswith("layers.0.") and other not in found:
            found[other] = found.pop(name)
    return found


def _differ(one: Rotation, other: Rotation) -> bool:
    return one[1] != other[1] or not np.allclose(one[0], other[0], rtol=1e-4, atol=0)
