"""MTP layers that transformers' own modules compute: those with experts, compressed keys or gates,
and several in a row.

A decoder layer is a copy of one of the target's: the one whose tensors have the same names. So it
has that layer's experts, router, norms and rotation. Its tensors are read from the files, because
transformers leaves them out when it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.mtp_layouts import Layout
from forerun.drafters.heads.published import broken, unserved
from forerun.models.attention import layer_kinds
from forerun.models.base import CpuPass

JOINED = {"experts.gate_up_proj": ("gate_proj", "up_proj"), "experts.down_proj": ("down_proj",)}
"""Tensors of all experts, by the end of transformers' name, and the products of one expert that
they are joined from, one below the other."""


@dataclass(frozen=True)
class PublishedStages:
    """MTP layers as they lie on disk; each makes the guess after that of the one before it."""

    name: str
    target: Fingerprint
    folder: Path
    layout: Layout
    numbers: tuple[int, ...]
    stored: Mapping[str, Callable[[], Any]]  # reads a tensor of these layers, or the head
    head: str  # the name of the head's tensor
    settings: Mapping[str, Any]  # of config.json

    def built(self, target: Any) -> tuple[list[Stage], Any]:
        """The layers as modules, on the CPU and in the files' precision, and the rotary embedding
        of the target: a function of values and positions (R, N)."""
        empty = self._empty(target)
        decoder, config = empty.get_decoder(), empty.config.get_text_config(decoder=True)
        kinds, stages = layer_kinds(empty), []
        for number in self.numbers:
            own = self._inside(number)
            strange = [len(_names(layer, own) ^ own) for layer in decoder.layers]
            alike = [i for i, count in enumerate(strange) if count == min(strange)]
            windows = {kinds[i].window for i in alike} if kinds else {None}
            if len(windows) > 1:
                wrong = "the target has layers with and without a sliding window, and its files do "
                raise self.unserved(wrong + "not say which of them this one is")
            stage = Stage(decoder.layers[alike[0]], windows.pop(), self.layout.begins_with_feature)
            stage.load_state_dict(dict(self._weights(stage, number, own)), assign=True)
            stages.append(stage.eval().requires_grad_(False))
        return stages, type(decoder.rotary_emb)(config)

    def _empty(self, target: Any) -> Any:
        """A model of the target's class without any numbers."""
        from transformers import AutoConfig, AutoModelForCausalLM

        try:
            with torch.device("meta"):
                if isinstance(target, CpuPass):  # has no model of transformers
                    config = AutoConfig.for_model(**self.settings)
                    return AutoModelForCausalLM.from_config(config)
                model = target.model
                config = deepcopy(model.config)
                for each in (config, config.get_text_config(decoder=True)):
                    each._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
                return type(model)(config)
        except Exception as error:  # a family, or settings, that this transformers does not know
            reason = f"transformers cannot make its layers ({str(error)[:200]})"
            raise self.unserved(reason) from error

    def _inside(self, number: int) -> set[str]:
        """The names of the tensors of a decoder layer, without their beginning."""
        within, around = self.layout.within.format(number), self.layout.around_names(number)
        ends = {f"{name}.weight" for name in around.values()}
        names = {name for name in self.stored if self.layout.has(name, number)}
        own = {name.removeprefix(within) for name in names - ends if name.startswith(within)}
        return {name for name in own if not name.endswith("inv_freq")}

    def _weights(self, stage: Stage, number: int, own: set[str]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a stage by its own names, each read and checked."""
        within = self.layout.within.format(number)
        around = {f"{ours}.weight": f"{theirs}.weight"
                  for ours, theirs in self.layout.around_names(number).items()}  # fmt: skip
        inside = _names(stage.block, own)
        needed = {*around.values(), *(within + name for name in inside)}
        if others := sorted(own - inside):
            wrong = f"its tensor {within}{others[0]} is in none of the target's layers"
            raise self.unserved(wrong)
        absent = sorted(needed - self.stored.keys())
        if absent:
            some = ", ".join(absent[:3]) + ", ..." * (len(absent) > 3)
            wrong = "Tensors that config.json promises are not in the files."
            raise self.broken(wrong, f"{len(absent)} missing: {some}")
        for ours, like in stage.state_dict().items():
            if ours in around:
                yield ours, self._read(around[ours], like.shape)
                continue
            name = ours.removeprefix("block.")
            pieces = _pieces(name, like, own)
            yield ours, self._joined([[within + piece for piece in row] for row in pieces], like)

    def _joined(self, pieces: Sequence[Sequence[str]], like: Tensor) -> Tensor:
        """The tensor made of named ones: one, or those of each expert, one below the other."""
        if len(pieces) == 1 and len(pieces[0]) == 1:
            return self._read(pieces[0][0], like.shape)
        _, rows, columns = like.shape
        shape = (rows // len(pieces[0]), columns)
        return torch.stack([torch.cat([self._read(n, shape) for n in row]) for row in pieces])

    def _read(self, name: str, shape: Sequence[int]) -> Tensor:
        tensor: Tensor = self.stored[name]()
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise self.unserved(f"its tensors are quantised ({name}: {kind})")
        if tuple(tensor.shape) != tuple(shape):
            wrong = f"{name} is of another shape than the target's own layers have."
            raise self.broken(wrong, f"{tuple(tensor.shape)} rather than {tuple(shape)}")
        if not tensor.isfinite().all():
            raise self.broken(f"{name} holds NaN or infinity.", name)
        return tensor

    def broken(self, wrong: str, received: Any) -> InputError:
        return broken("MTP layer", self.folder, wrong, received)

    def unserved(self, reason: str) -> UnsupportedError:
        return unserved("MTP layer", self.folder, reason)


class Stage(nn.Module):  # type: ignore[misc]
    """One MTP layer: the joined vector, a decoder layer and the norm before the head."""

    def __init__(self, layer: nn.Module, window: int | None, begins_with_feature: bool) -> None:
        """layer: a decoder layer to copy. window: the number of keys that it sees; None: all."""
        super().__init__()
        self.block = deepcopy(layer)
        norm = next(module for name, module in layer.named_children() if "norm" in name)
        width = len(norm.weight)
        self.norm_embedding, self.norm_feature = deepcopy(norm), deepcopy(norm)
        self.norm_head = deepcopy(norm)
        self.join = nn.Linear(2 * width, width, bias=False, device="meta")
        self.begins_with_feature = begins_with_feature
        self.window = window

    def forward(
        self,
        features: Tensor,  # (R, N, D)
        embeddings: Tensor,  # (R, N, D)
        mask: Tensor,  # (R, 1, N, keys), additive
        positions: Tensor,  # (R, N)
        turns: Any,  # the cosines and sines of the positions
        cache: Any,
    ) -> Tensor:
        """The outputs (R, N, D), before the norm of the head."""
        halves = [self.norm_embedding(embeddings), self.norm_feature(features)]
        if self.begins_with_feature:
            halves.reverse()
        made = self.block(
            self.join(torch.cat(halves, -1)),
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=turns,
            past_key_values=cache,
        )
        output: Tensor = made[0] if isinstance(made, tuple) else made
        return output


def _names(layer: nn.Module, own: Collection[str]) -> set[str]:
    """The published names of a layer's tensors. own: those in the files, which tell whether
    experts lie there one by one."""
    state = layer.state_dict()
    return {n for name, like in state.items() for row in _pieces(name, like, own) for n in row}


def _pieces(name: str, like: Tensor, own: Collection[str]) -> list[list[str]]:
    """The published tensors that one of a layer's is joined from: a list for each expert, or one
    tensor alone."""
    for end, products in JOINED.items():
        if name.endswith(end) and name not in own and like.dim() == 3:
            at = name.removesuffix(end) + "experts"
            return [[f"{at}.{expert}.{each}.weight" for each in products]
                    for expert in range(len(like))]  # fmt: skip
    return [[name]]
