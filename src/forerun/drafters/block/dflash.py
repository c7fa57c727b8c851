"""Reads published DFlash and DFlash2 draft models: maps their tensors to our weights, and refuses
unknown settings.

They come in a flat layout, as z-lab writes them, or in the layout of `speculators`. These count
layers differently: z-lab's `target_layer_ids` is the index of the layer whose output is read, the
other layout gives the number of layers before it. Most files have no head and no embedding, and use
the target's. DFlash2 adds local convolutions and a selector.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.block.selector import Selector
from forerun.drafters.folders import description_of, kind_of, refuse, tensors_of
from forerun.drafters.heads.design import BlockDesign
from forerun.drafters.heads.eagle3 import LATER
from forerun.drafters.heads.files import Trained
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.fitting import check
from forerun.drafters.heads.published import LAYER, MOST_SIZE, PublishedFiles
from forerun.drafters.heads.readings import head_of

KIND, SECOND = KINDS = "dflash", "dflash2"
MOST_BLOCK = 1024  # entries
ENDS = {
    "fuse": "fc", "norm_feature": "hidden_norm", "norm_head": "norm", "head": "lm_head",
    "selector": "candidate_selector.hidden_projection",
}  # fmt: skip
CONVS = {
    "conv_attention.base": "attention_conv.base_kernel",
    "conv_attention.kernel.weight": "attention_conv.kernel_projection.weight",
    "conv_mlp.base": "mlp_conv.base_kernel",
    "conv_mlp.kernel.weight": "mlp_conv.kernel_projection.weight",
}
"""The names of our weights for a layer's convolutions, and of the tensors they are read from."""
TABLES = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
UNUSED = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")
"""Tensors that are not used for drafting: a mask of the draft tokens, and parts of the target."""

FALSE_ONLY = {
    "quantization_config": "its tensors are quantised",
    "use_sliding_window": "its layers see a sliding window",
    "use_swa": "its layers see a sliding window",
    "causal": "an entry of its block does not see later ones",
    "attention_sink_bias": "its attention has sinks",
    "final_logit_softcapping": "its logits are capped",
    "use_gemma_norm": "its norms add one to their weights",
    "attention_value_scale": "its values are scaled",
}
"""Settings that must be off, because a draft model with them computes something else; each with
what it means."""
ONE_ONLY = {
    "input_embedding_scale": "its embeddings are scaled",
    "output_multiplier": "its logits are scaled",
    "logit_scale": "its logits are scaled",
}
"""Settings that must be 1 if they are given, each with what another value would mean."""
SCALES = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
"""Settings that DFlash2 computes with, if they are in `dflash_config`."""
SETTINGS = {
    "mask_token_id", "target_layer_ids", "causal", "use_swa", "swa_window_size", "block_size",
    "attention_sink_bias", "sample_from_anchor", "projector_type", *ONE_ONLY, *FALSE_ONLY,
    "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k",
}  # fmt: skip
"""The known names in `dflash_config`; an unknown name means a newer layout."""


@dataclass(frozen=True)
class PublishedBlock:
    """A draft model as read from disk; it may still need the head of its target."""

    trained: Trained  # without a head where the target's is meant
    selector: Selector | None  # of DFlash2

    def on(self, target: Any) -> Trained:
        """The complete drafter for a target; raises if it was made for another one."""
        trained = self.trained
        check(trained.target, target)
        if max(trained.design.layers) >= target.num_layers:
            wrong = f"The draft model reads layers that {target.name} does not have, or its last."
            cure = "Use it with the target that it was trained for."
            raise UnsupportedError(explain(wrong, list(trained.design.layers), cure))
        if "head.weight" in trained.weights:
            return trained
        head = head_of(target, trained.tokens)
        return replace(trained, weights={**trained.weights, "head.weight": head})


def load(folder: Path) -> PublishedBlock:
    """Read the draft model in a folder; raises for one that cannot be read as DFlash."""
    described = description_of(folder)
    kind = kind_of(folder, described)
    if kind not in KINDS:
        refuse(folder, kind, "a DFlash draft model")
    tensors = {name.removeprefix("model."): v for name, v in tensors_of(folder).items()}
    files = Files(folder, described, tensors, is_second=kind == SECOND)
    files.check_settings()
    design = files.design()
    verifier = (described.get("speculators_config") or {}).get("verifier") or {}
    about = Fingerprint(
        str(verifier.get("name_or_path") or "another model"),
        design.hidden_size,
        described.get("num_target_layers"),
        files.config.vocab_size,
        (),
    )
    tokens, embedding = files.tokens(design.num_tokens), files.embedding(design)
    trained = Trained(design, about, tokens, files.weights(design), embedding)
    return PublishedBlock(trained, files.selector(design) if files.is_second else None)


@dataclass
class Files(PublishedFiles):
    """The config.json and the tensors of a draft model."""

    noun = "DFlash draft model"
    inside = "dflash_config"
    is_second: bool = field(kw_only=True)  # DFlash2

    def check_settings(self) -> None:
        """Refuse a draft model that computes something other than our network."""
        self._check_version()
        served = {name for name in SCALES if self.is_second and name in self.more}
        self._check_off({name: means for name, means in FALSE_ONLY.items() if name not in served})
        for name, means in ONE_ONLY.items():
            if name not in served and self.switch(name) not in (None, 1):
                raise self._unserved(f"{means} ({name})")
        if self.switch("projector_type") not in (None, "linear"):
            raise self._unserved(f"it fuses states by {self.switch('projector_type')!r:.40}")
        for name, value in self.more.items():
            if name not in SETTINGS and value not in (None, False):
                raise self._unserved(f"{name} is {value!r:.40}, a setting that is not known here")
        self._check_layers()

    def design(self) -> BlockDesign:
        """The sizes and switches of the network."""
        config, sizes = self.config, self._sizes("layers.0.")
        sizes["has_head_norms"] = True
        if "fc.bias" in self.tensors:
            sizes["biases"] = ("fuse", *sizes["biases"])
        return BlockDesign(
            **sizes,
            layers=self._layers(),
            num_tokens=self.switch("draft_vocab_size") or config.vocab_size,
            state_norm="none",
            num_layers=config.num_hidden_layers,
            block_size=self._whole("block_size", 2, MOST_BLOCK),
            mask_token=self._whole("mask_token_id", 0, config.vocab_size - 1),
            anchor_guesses=bool(self.switch("sample_from_anchor")),
            **self._of_second() if self.is_second else {},
        )

    def _of_second(self) -> dict[str, Any]:
        """The sizes and switches of `BlockDesign` that only DFlash2 sets."""
        width, size = self.config.hidden_size, self._whole("block_size", 2, MOST_BLOCK)
        group = self._whole("conv_group_size", 1, width)
        if width % group:
            wrong = f"conv_group_size does not divide hidden_size, {width}."
            raise self._broken(wrong, group)
        return {
            "conv_taps": self._whole("conv_kernel_size", 1, size),
            "conv_group": group,
            "selector_rank": self._whole("selector_rank", 1, MOST_SIZE),
            "embedding_scale": self._number("input_embedding_scale") or 1.0,
        }

    def selector(self, design: BlockDesign) -> Selector:
        """The tables and settings of the selector."""
        size, multiplier = self.config.vocab_size, self._number("output_multiplier") or 1.0
        if design.num_tokens != size:
            raise self._unserved(f"its selector knows {size} tokens, its head {design.num_tokens}")
        cap = self._number("final_logit_softcapping")
        if cap and multiplier != 1:  # vLLM caps before it multiplies, SGLang after
            raise self._unserved("engines differ in what output_multiplier does to capped logits")
        for name in TABLES:
            if name not in self.tensors:
                raise self._broken("Tensors that config.json promises are not in the files.", name)
            self._check_shape(name, (size, design.selector_rank))
            self._check_finite(name)
        before, after = (self.tensors[name] for name in TABLES)
        return Selector(before, after, self._whole("selector_top_k", 1, size), multiplier, cap)

    def weights(self, design: BlockDesign) -> dict[str, NDArray[np.float32]]:
        """The tensors under the names of `BlockNetwork.state_dict`."""
        expected = pieces(design)
        if "lm_head.weight" not in self.tensors:
            del expected["head.weight"]
        return self._taken(expected, design.shapes, UNUSED + TABLES * self.is_second)

    def _layers(self) -> tuple[int, ...]:
        """The target's layers that the draft model reads, each as the number of layers before the
        state."""
        name = "target_layer_ids" if self.is_flat else "aux_hidden_state_layer_ids"
        ids = self.switch(name)
        if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
            raise self._broken(f"{name} is no list of layer numbers.", f"{ids!r:.80}")
        found = tuple(each + self.is_flat for each in ids)
        if min(found) < 0 or len(set(found)) < len(found):
            raise self._broken(f"{name} names a layer twice, or none that there is.", ids)
        return found

    def _whole(self, name: str, least: int, most: int) -> int:
        """A required setting that must be a whole number in a range."""
        value = self.switch(name)
        if type(value) is not int or not least <= value <= most:
            wrong = f"{name} is no whole number from {least} to {most}."
            raise self._broken(wrong, f"{value!r:.60}")
        return int(value)

    def _number(self, name: str) -> float | None:
        """A setting in `dflash_config` that must be a positive number; None if it is off."""
        value = self.more.get(name)
        if value is None or value is False or value == 0:
            return None
        if type(value) not in (int, float) or not 0 < value < np.inf:
            raise self._broken(f"{name} is no positive number.", f"{value!r:.60}")
        return float(value)


def pieces(design: BlockDesign) -> dict[str, list[tuple[str, int]]]:
    """For each of our weights, the published tensors that it is made of, and their numbers of
    rows."""
    inner, shared = design.num_heads * design.head_size, design.num_kv_heads * design.head_size
    rows = {"qkv": (inner, shared, shared), "gate_up": (design.mlp_size, design.mlp_size)}
    made: dict[str, list[tuple[str, int]]] = {}
    for ours, shape in design.shapes.items():
        if conv := next((name for name in CONVS if ours.endswith(name)), None):
            made[ours] = [(ours.replace(conv, CONVS[conv]), shape[0])]
            continue
        stem, _, kind = ours.rpartition(".")
        layer, _, part = stem.rpartition(".")
        theirs = (LAYER | LATER)[part] if layer else (ENDS[part],)
        names = [f"{layer}.{name}.{kind}" if layer else f"{name}.{kind}" for name in theirs]
        made[ours] = list(zip(names, rows.get(part, shape[:1]), strict=True))
    return made
