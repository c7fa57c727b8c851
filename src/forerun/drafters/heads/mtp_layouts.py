"""The layouts of MTP layers among the tensors of a model: names, and how a layer is read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain, notice
from forerun.drafters.heads.published import LAYER

ENDS = ("norm_embedding", "norm_feature", "join", "norm_head")
"""The weights before and after the decoder layer, in the order of `Layout.ends`."""
INSIDE = LAYER | {"norm": ("input_layernorm",)}
MOST_LAYERS = 100  # what a file promises is believed no further
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
        """The numbers of the layers that have a tensor among these names, in ascending order. A
        layer whose ends all layers share is known by its inside, the first by the ends too."""
        around, within = (_pattern(each) for each in (self.around, self.within))
        end = re.compile(rf"{around}(?:{'|'.join(map(re.escape, self.ends))})\.weight")
        is_shared = "{}" not in self.around
        found = set()
        for name in names:
            match = end.fullmatch(name) or (re.match(within, name) if is_shared else None)
            if match:
                found.add(int(match[1]) if match.lastindex else 0)
        return sorted(found)

    def has(self, name: str, number: int) -> bool:
        """Whether a tensor is one of this layer."""
        around, within = self.around.format(number), self.within.format(number)
        rest = name.removeprefix(around)
        return name.startswith(within) or (rest != name and not rest.startswith("layers."))

    def names(self, number: int) -> dict[str, tuple[str, ...]]:
        """The names of the published tensors that each of our weights is made of, for one layer."""
        within = self.within.format(number)
        names = {ours: (theirs,) for ours, theirs in self.around_names(number).items()}
        inside = {ours: tuple(within + each for each in theirs) for ours, theirs in INSIDE.items()}
        return names | inside

    def around_names(self, number: int) -> dict[str, str]:
        """The name of each tensor before and after the decoder layer, by ours in `ENDS`."""
        around = self.around.format(number)
        return {ours: around + end for ours, end in zip(ENDS, self.ends, strict=True)}

    def readings(self) -> dict[str, tuple[bool, bool]]:
        """Whether states are read after the target's norm, and its own outputs after its own, in
        every reading that the layout allows, by its description."""
        found = {}
        for reads_normed, norms_output in itertools.product(self.reads_normed, self.norms_output):
            words = [f"states {_when(reads_normed)} the final norm"] * (len(self.reads_normed) > 1)
            words += [f"outputs {_when(norms_output)} its own"] * (len(self.norms_output) > 1)
            found[", ".join(words)] = reads_normed, norms_output
        return found


DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
QWEN = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
LAYOUTS = (
    Layout("model.layers.{}.", "model.layers.{}.", DEEPSEEK, counts_on=True),  # and GLM-4.5
    Layout("mtp.", "mtp.layers.{}.", QWEN, reads_normed=(True,), norms_output=(True,)),
    Layout("model.mtp_layers.{}.", "model.mtp_layers.{}.", MIMO, begins_with_feature=True),
    Layout("mtp_layers.{}.", "mtp_layers.{}.", MIMO, norms_output=(True,)),  # `speculators`
)
UNKNOWN = re.compile(r"(^|\.)(mtp|nextn)")
"""Matches the names of MTP layers in any layout."""


def belonging(names: Collection[str]) -> set[str]:
    """The names, among a model's tensors, that belong to MTP layers."""
    found = [layout.around.format(n) for layout in LAYOUTS for n in layout.numbers(names)]
    return {name for name in names if name.startswith(tuple(found))}


def layers_in(
    folder: Path, settings: Mapping[str, Any], names: Collection[str]
) -> tuple[Layout, list[int]]:
    """The layout of a folder's MTP layers and their numbers, as many as config.json promises.
    Raises if one of these has no tensors, or if there is no layer at all."""
    promise = next((name for name in PROMISES if settings.get(name)), "")
    promised = settings.get(promise)
    most = min(promised, MOST_LAYERS) if type(promised) is int and promised > 0 else None
    for layout in LAYOUTS:
        numbers = layout.numbers(names)
        if numbers:
            _check_first(folder, settings, layout, numbers[0])
            _check_all(folder, layout, numbers, promise, most)
            if most is not None and most < len(numbers):
                notice(f"{folder} has {len(numbers)} MTP layers; {promise} says {most}")
            return layout, numbers[:most]
    known = [re.compile(_pattern(layout.within)) for layout in LAYOUTS]
    strange = (name for name in names if not any(each.match(name) for each in known))
    if others := sorted(filter(UNKNOWN.search, strange)):
        wrong = f"The layout of these MTP layers is not known here ({others[0]})."
        raise UnsupportedError(explain(wrong, repr(str(folder)), "Use another drafter."))
    wrong = "No MTP layer is in the files."
    if promise:
        wrong = f"config.json promises an MTP layer ({promise}), but no file has its tensors: "
        wrong += "they were left out of this copy."
    raise _left_out(folder, wrong)


def _check_first(folder: Path, settings: Mapping[str, Any], layout: Layout, number: int) -> None:
    """Refuse files whose first MTP layer is not there, though a later one is. Layers count from 0,
    or go on from those of the model."""
    begins = (0, settings.get("num_hidden_layers")) if layout.counts_on else (0,)
    if number in begins:
        return
    name = layout.within.format(begins[-1])
    wrong = f"The files have the MTP layer {layout.within.format(number)}* and not the first, "
    raise _left_out(folder, wrong + f"{name}*: it was left out of this copy.")


def _check_all(
    folder: Path, layout: Layout, numbers: Sequence[int], promise: str, most: int | None
) -> None:
    """Refuse files that lack one of the layers between the first and the last, or of those that
    config.json promises."""
    expected = range(numbers[0], numbers[0] + (most or 0))
    between = range(numbers[0], numbers[-1] + 1)
    absent = [layout.within.format(n) + "*" for n in expected or between if n not in numbers]
    if absent:
        wrong = f"The files lack the MTP layer {', '.join(absent)}"
        wrong += (
            f", and config.json promises {most} ({promise})" if most else ", and have later ones"
        )
        raise _left_out(folder, wrong + ": it was left out of this copy.")


def _left_out(folder: Path, wrong: str) -> InputError:
    cure = "Use the repository of the model's makers, or another drafter."
    return InputError(explain(wrong, repr(str(folder)), cure))


def _pattern(name: str) -> str:
    return re.escape(name).replace(r"\{\}", r"(\d+)")


def _when(is_normed: bool) -> str:
    return "after" if is_normed else "before"
