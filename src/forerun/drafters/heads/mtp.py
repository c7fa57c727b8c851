"""Multi-token prediction (MTP): the layer after the last, which some models carry in their files.

It joins the feature of a token and the embedding of the one after it into one vector, and runs one
decoder layer over that; embedding and head are the target's.  Layouts differ in the names and in
which half comes first (`mtp_layouts.py`).  Engines differ in whether a state is read before or
after the norm that follows it; where no layout settles that, `readings.py` tries both.  A single
layer like a Llama's is our network; others are modules of transformers (`mtp_stages.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.folders import description_of, find, kind_of, refuse, stored_in, tensors_of
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.eagle3 import Rotation, swapped
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.mtp_layouts import Layout, layers_in
from forerun.drafters.heads.published import MOST_SIZE, PublishedFiles, matched

if TYPE_CHECKING:
    from forerun.drafters.heads.mtp_stages import PublishedStages

MOST_LAYERS = 10_000
SHARED = re.compile(r".*(embed_tokens|shared_head\.head|lm_head)\.weight")
"""Matches copies of the target's embedding and head, which are left out."""

OTHERS = re.compile(r"\.experts\.|shared_expert|mlp\.gate\.|\.(q_a|kv_a|kv_b)_")
"""Matches the names of tensors that our network does not have: of experts, and of compressed keys
(MLA)."""
QUANTISED = re.compile(r"scale|qweight|qzeros|packed|g_idx|absmax|\.SCB")
OURS = ("llama", "mistral", "qwen2", "qwen3", "mimo")
"""The model types whose attention our network computes whatever else a config.json says."""


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
        return {
            words: replace(
                self.design,
                layers=(num_layers,),
                state_norm="none" if reads_normed else "each",
                norms_output=norms_output,
            )
            for words, (reads_normed, norms_output) in self.layout.readings().items()
        }


def load(place: str | Path) -> PublishedLayer | PublishedStages:
    """Read the MTP layers of a model's own folder, or of a folder that holds nothing else."""
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
    stored = stored_in(folder)
    layout, numbers = layers_in(folder, settings, stored)
    own = {name for name in stored if any(layout.has(name, number) for number in numbers)}
    own = {name for name in own if not SHARED.match(name)}
    _check_exact(folder, own)
    is_flat = "speculators_model_type" not in described
    num_layers = settings.get("num_hidden_layers") if kind == "model" else None
    if len(numbers) > 1 or _is_of_others(settings, own):
        from forerun.drafters.heads.mtp_stages import PublishedStages

        width, size = (_size(folder, settings, name) for name in ("hidden_size", "vocab_size"))
        about = Fingerprint("another model", width, num_layers, size, ())
        read = {name: stored[name] for name in stored if name in own or name == head}
        whole = settings if is_flat else layer
        return PublishedStages(str(place), about, folder, layout, tuple(numbers), read, head, whole)
    tensors = tensors_of(folder, lambda names: (own | {head}) & names)
    files = Files(folder, settings if is_flat else described, tensors)
    files.check_settings()
    design = files.design(layout, numbers[0])
    size = files.config.vocab_size
    about = Fingerprint("another model", design.hidden_size, num_layers, size, ())
    names = layout.names(numbers[0]) | {"head": (head.removesuffix(".weight"),)}
    weights = files.weights(design, names)
    if not layout.begins_with_feature:
        weights["join.weight"] = swapped(weights["join.weight"])
    return PublishedLayer(str(place), about, design, weights, np.arange(size), layout)


def of(target: Any) -> PublishedLayer | PublishedStages:
    """The layers in a target's own files."""
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


def _check_exact(folder: Path, names: Collection[str]) -> None:
    """Refuse quantised layers, before their tensors are read."""
    for name in filter(QUANTISED.search, sorted(names)):
        wrong = f"This MTP layer cannot draft here: its tensors are quantised ({name})."
        raise UnsupportedError(explain(wrong, repr(str(folder)), "Use another one."))


def _size(folder: Path, settings: Mapping[str, Any], name: str) -> int:
    """A size that config.json states; raises if it is none."""
    size = settings.get(name)
    if type(size) is int and 0 < size <= MOST_SIZE:
        return size
    wrong = f"The MTP layer cannot be read. {name} is no size of its tensors."
    cure = f"Copy or download {str(folder)!r} again, config.json and weights together."
    raise InputError(explain(wrong, f"{size!r:.60}", cure))


def _is_of_others(settings: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a layer has parts that our network lacks, and a module of transformers may have."""
    if any(map(OTHERS.search, names)):
        return True
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    share = rope.get("partial_rotary_factor") or settings.get("partial_rotary_factor") or 1.0
    is_ours = settings.get("model_type", OURS[0]) in OURS
    return not is_ours and bool(share != 1.0 or settings.get("attn_output_gate"))
