"""Multi-token prediction (MTP): the layer after the last, which some models carry in their files.

It joins the feature of a token and the embedding of the one after it into one vector, and runs one
decoder layer over that; embedding and head are the target's.  Layouts differ in the names and in
which half comes first.  Engines differ in whether a state is read before or after the norm that
follows it; where no layout settles that, `readings.py` tries both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, UnsupportedError, explain, notice
from forerun.drafters.folders import description_of, find, kind_of, refuse, tensors_of
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.eagle3 import Rotation, swapped
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.published import LAYER, PublishedFiles, matched

ENDS = ("norm_embedding", "norm_feature", "join", "norm_head")
"""The weights before and after the decoder layer, in the order of `Layout.ends`."""
INSIDE = LAYER | {"norm": ("input_layernorm",)}
MOST_LAYERS = 10_000
PROMISES = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


@dataclass(frozen=True)
class Layout:
    """The names of a layer's tensors in one published layout ({} stands for the layer's number),
    and how the layer is read."""

    around: str  # the beginning of the names around the decoder layer
    within: str  # of those of the decoder layer
    ends: tuple[str, str, str, str]
    begins_with_feature: bool = False  # the joined vector; else with the embedding
    reads_normed: Sequence[bool] = (True, False)  # the target's states after its final norm
    norms_output: Sequence[bool] = (True, False)  # its own output goes on after its norm
    counts_on: bool = False  # its number is that after the model's last layer

    def numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of the layers that have a tensor among these names, in ascending order."""
        around = re.escape(self.around).replace(r"\{\}", r"(\d+)")
        name = re.compile(rf"{around}(?:{'|'.join(map(re.escape, self.ends))})\.weight")
        found = filter(None, map(name.fullmatch, names))
        return sorted({int(match[1]) if match.lastindex else 0 for match in found})

    def has(self, name: str, number: int) -> bool:
        """Whether a tensor is one of this layer."""
        around, within = self.around.format(number), self.within.format(number)
        rest = name.removeprefix(around)
        return name.startswith(within) or (rest != name and not rest.startswith("layers."))

    def names(self, number: int) -> dict[str, tuple[str, ...]]:
        """The names of the published tensors that each of our weights is made of, for one layer."""
        around, within = self.around.format(number), self.within.format(number)
        names: dict[str, tuple[str, ...]] = {
            ours: (around + end,) for ours, end in zip(ENDS, self.ends, strict=True)
        }
        inside = {ours: tuple(within + each for each in theirs) for ours, theirs in INSIDE.items()}
        return names | inside


DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
QWEN = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
LAYOUTS = (
    Layout("model.layers.{}.", "model.layers.{}.", DEEPSEEK, counts_on=True),  # and GLM-4.5
    Layout("mtp.", "mtp.layers.{}.", QWEN, reads_normed=(True,), norms_output=(True,)),
    Layout("model.mtp_layers.{}.", "model.mtp_layers.{}.", MIMO, begins_with_feature=True),
    Layout("mtp_layers.{}.", "mtp_layers.{}.", MIMO, norms_output=(True,)),  # `speculators`
)
SHARED = re.compile(r".*(embed_tokens|shared_head\.head|lm_head)\.weight")
"""Matches copies of the target's embedding and head, which are left out."""
OF_OTHERS = {
    r"\.experts\.|shared_expert|mlp\.gate\.": "its layer has experts",
    r"\.(q_a|kv_a|kv_b)_": "its keys and values are compressed (MLA)",
    r"scale|qweight|qzeros|packed|g_idx|absmax|\.SCB": "its tensors are quantised",
}
"""Patterns for the names of tensors that our network does not have, each with what such a tensor
means."""


@dataclass(frozen=True)
class PublishedLayer:
    """A layer as it lies on disk, before its target is known."""

    name: str
    target: Fingerprint
    design: Design  # its layers are those of the target
    weights: Mapping[str, NDArray[np.float32]]  # without the head where that is not in the files
    tokens: NDArray[np.int64]  # (V,)
    layout: Layout
    embedding: None = None

    def designs(self, num_layers: int, rotation: Rotation | None) -> dict[str, Design]:
        """Every reading for a target with this many layers, by its description."""
        found, layout = {}, self.layout
        for is_normed, norms_output in itertools.product(layout.reads_normed, layout.norms_output):
            words = [f"states {_when(is_normed)} the final norm"] * (len(layout.reads_normed) > 1)
            words += [f"outputs {_when(norms_output)} its own"] * (len(layout.norms_output) > 1)
            found[", ".join(words)] = replace(
                self.design,
                layers=(num_layers,),
                state_norm="none" if is_normed else "each",
                norms_output=norms_output,
            )
        return found


def load(place: str | Path) -> PublishedLayer:
    """Read the first MTP layer of a model's own folder, or of a folder that holds nothing else."""
    folder = find(place)
    described = description_of(folder)
    kind = kind_of(folder, described)
    is_beside = kind == "forerun" and described  # one of ours in the folder of a model
    if kind not in ("model", "mtp") and not is_beside:
        refuse(folder, kind, "a model with MTP layers")
    layer = described.get("transformer_layer_config") or described.get("text_config") or {}
    settings = described | layer
    is_tied = bool(described.get("tie_word_embeddings"))
    head = "model.embed_tokens.weight" if is_tied else "lm_head.weight"

    def choose(names: set[str]) -> Collection[str]:
        layout, number = _first(folder, settings, names)
        own = [name for name in names if layout.has(name, number) and not SHARED.match(name)]
        _check_kind(folder, own)
        return [*own, head] if head in names else own

    tensors = tensors_of(folder, choose)
    layout, number = _first(folder, settings, {*tensors})
    num_layers = settings.get("num_hidden_layers") if kind == "model" else None
    is_flat = "speculators_model_type" not in described
    files = Files(folder, settings if is_flat else described, tensors)
    files.check_settings()
    design = files.design(layout, number)
    size = files.config.vocab_size
    about = Fingerprint("another model", design.hidden_size, num_layers, size, ())
    names = layout.names(number) | {"head": (head.removesuffix(".weight"),)}
    weights = files.weights(design, names)
    if not layout.begins_with_feature:
        weights["join.weight"] = swapped(weights["join.weight"])
    return PublishedLayer(str(place), about, design, weights, np.arange(size), layout)


def belonging(names: Collection[str]) -> set[str]:
    """The names, among a model's tensors, that belong to MTP layers."""
    found = [layout.around.format(n) for layout in LAYOUTS for n in layout.numbers(names)]
    return {name for name in names if name.startswith(tuple(found))}


def of(target: Any) -> PublishedLayer:
    """The layer in a target's own files."""
    name = str(target.name).removesuffix("-int8")
    folder = Path(name).expanduser()
    return load(folder if folder.is_dir() else _downloaded(name))


def _downloaded(name: str) -> Path:
    """The folder of a target that was loaded from the hub; nothing is downloaded."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, local_files_only=True))
    except Exception as error:  # no such name, no copy of it, or no such package
        wrong = "The target was not loaded from a folder or the hub, so its files are not known."
        cure = "Name the folder of its MTP layer: mtp:FOLDER."
        raise InputError(explain(wrong, repr(name), cure)) from error


class Files(PublishedFiles):
    """The settings of the target, and the tensors of its MTP layer."""

    noun = "MTP layer"
    most_layers = MOST_LAYERS  # of the target

    def check_settings(self) -> None:
        """Refuse a layer that computes something other than our network."""
        self._check_version()
        self._check_off({"use_sliding_window": "its layer sees a sliding window"})
        self._check_layers()
        if self.switch("attn_output_gate"):
            raise self._unserved("its attention has a gate (attn_output_gate)")

    def design(self, layout: Layout, number: int) -> Design:
        """The sizes and switches of the network, except for how states are read."""
        return Design(
            **self._sizes(layout.within.format(number)),
            layers=(0,),
            num_tokens=self.config.vocab_size,
            state_norm="none",
            is_joined=True,
        )

    def weights(
        self, design: Design, names: Mapping[str, tuple[str, ...]]
    ) -> dict[str, NDArray[np.float32]]:
        """The tensors with these names, renamed as `Network.state_dict` calls them."""
        expected = matched(design, names)
        if f"{names['head'][0]}.weight" not in self.tensors:
            del expected["head.weight"]
        return self._taken(expected, design.shapes, ())


def _check_kind(folder: Path, names: Collection[str]) -> None:
    """Refuse a layer that our network does not compute, before its tensors are read."""
    for pattern, means in OF_OTHERS.items():
        for name in filter(re.compile(pattern).search, names):
            wrong, cure = f"This MTP layer cannot draft here: {means} ({name}).", "Use another one."
            raise UnsupportedError(explain(wrong, repr(str(folder)), cure))


def _first(folder: Path, settings: Mapping[str, Any], names: set[str]) -> tuple[Layout, int]:
    """The layout of a folder's MTP layers and the number of the first; raises if it has none."""
    for layout in LAYOUTS:
        numbers = layout.numbers(names)
        if len(numbers) > 1:
            notice(f"{folder} has {len(numbers)} MTP layers; the first makes all guesses")
        if numbers:
            _check_first(folder, settings, layout, numbers[0])
            return layout, numbers[0]
    promised = next((name for name in PROMISES if settings.get(name)), None)
    wrong = "No MTP layer is in the files."
    if promised:
        wrong = f"config.json promises an MTP layer ({promised}), but no file has its tensors: "
        wrong += "they were left out of this copy."
    cure = "Use the repository of the model's makers, or another drafter."
    raise InputError(explain(wrong, repr(str(folder)), cure))


def _check_first(folder: Path, settings: Mapping[str, Any], layout: Layout, number: int) -> None:
    """Refuse files whose first MTP layer is not there, though a later one is. Layers count from 0,
    or go on from those of the model."""
    begins = (0, settings.get("num_hidden_layers")) if layout.counts_on else (0,)
    if number in begins:
        return
    name = layout.around.format(begins[-1])
    wrong = f"The files have the MTP layer {layout.around.format(number)}* and not the first, "
    wrong += f"{name}*: it was left out of this copy."
    cure = "Use the repository of the model's makers, or another drafter."
    raise InputError(explain(wrong, repr(str(folder)), cure))


def _when(is_normed: bool) -> str:
    return "after" if is_normed else "before"
