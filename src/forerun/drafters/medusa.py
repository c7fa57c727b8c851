"""Medusa heads: each reads the target's last hidden state and guesses one token further ahead.

They are read in two layouts: FasterDecoding's own, and the one that vLLM converts to. A head is a
few blocks x + SiLU(Wx + b), and a product that gives logits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.folders import description_of, find, kind_of, refuse, tensors_of
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.fitting import check
from forerun.drafters.heads.listening import Listening
from forerun.drafters.heads.runner import Logits
from forerun.drafters.one_pass import OnePass
from forerun.models.base import CpuPass

Tensors = Mapping[str, NDArray[Any]]
Head = list[Any]
"""Weight (D, D) and bias (D,) of each block, and the weight (Vd, D) of the logits."""

NAMES = {
    r"^medusa_heads?\.": "",
    r"^(\d+)\.(\d+)\.linear\.": r"\1.block.\2.",
    r"^blocks\.(\d+)\.layers\.(\d+)\.": r"\1.block.\2.",
    r"^lm_heads\.(\d+)\.": r"\1.head.",
    r"^(\d+)\.(\d+)\.weight$": r"\1.head.weight",
}
"""Patterns for the tensor names of both layouts, and what turns them into our names:
HEAD.block.LAYER.weight, HEAD.head.weight."""
OF_THE_TARGET = re.compile(r"(base_)?model\.|lm_head\.")
"""Matches the names of the target's own tensors, which may lie in the same files."""
COUNTS = {"heads": ("medusa_num_heads", "num_heads"), "blocks": ("medusa_num_layers",)}
"""The settings of config.json that give the numbers of heads and of blocks."""


@dataclass(frozen=True)
class Published:
    """Medusa heads as read from disk."""

    heads: list[Head]  # those of all logits may be one array
    scale: float  # of the logits
    tokens: NDArray[np.int64]  # (Vd,): the target's id of each draft token
    vocab_size: int  # of the target


class Medusa(OnePass):
    """Draft with Medusa heads that were trained for this target.

    source: a folder with config.json and the weights, or a name on the Hugging Face hub.

    It makes no guesses in a request's first round, in which the target reads the prompt.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__()
        folder = find(source)
        about = description_of(folder)
        if (kind := kind_of(folder, about)) != "medusa":
            refuse(folder, kind, "Medusa heads")
        self.name = f"medusa:{source}"
        self.layers: tuple[int, ...] = ()  # the last of its target, once that is known
        self._published = Files(folder, about).read()
        self.tokens = self._published.tokens
        self.num_guesses = len(self._published.heads)

    def fit(self, target: Any) -> Any:
        width = self._published.heads[0][-1].shape[1]
        about = Fingerprint("another model", width, None, self._published.vocab_size, ())
        check(about, target)
        if self.layers and self.layers != (target.num_layers,):
            wrong = "This drafter already drafts for a target with another number of layers."
            cure = "Make a second one: forerun.drafters.Medusa(...)."
            raise UnsupportedError(explain(wrong, target.num_layers, cure))
        self.layers = (target.num_layers,)
        return MedusaRunner(self._published, target)

    def logits_of(self, state: Listening, begun: Logits, level: int) -> Logits:
        runner: Any = state.runner
        found: Logits = runner.head(level, begun)
        return found


class MedusaRunner:
    """Computes the heads on the target's device and in its precision. It keeps nothing between
    rounds."""

    reads_last = True

    def __init__(self, published: Published, target: Any) -> None:
        import torch

        is_lean = isinstance(target, CpuPass)
        like = torch.zeros(0) if is_lean else target.model.get_input_embeddings().weight
        parts = {id(part): part for head in published.heads for part in head}
        placed = {i: torch.from_numpy(part).to(like) for i, part in parts.items()}
        self._heads = [[placed[id(part)] for part in head] for head in published.heads]
        self._scale = published.scale

    def start(self, num_rows: int, capacity: int) -> None:
        return None

    def extend(
        self,
        state: None,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        """Return the last hidden state of each row (R, D), which is the input of every head."""
        import torch

        last = torch.stack([torch.as_tensor(part[-1]) for part in features])
        found: Logits = last.float().cpu().numpy()
        return found

    def head(self, number: int, states: Logits) -> Logits:
        """The logits (R, Vd) of one head, from the rows' last hidden states (R, D)."""
        import torch

        *blocks, head = self._heads[number]
        with torch.inference_mode():
            hidden = torch.from_numpy(states).to(head)
            for weight, bias in zip(blocks[::2], blocks[1::2], strict=True):
                inner = torch.nn.functional.linear(hidden, weight, bias)
                hidden = hidden + torch.nn.functional.silu(inner)
            logits: Logits = ((hidden @ head.T).float() * self._scale).cpu().numpy()
        return logits

    def release(self, state: None, row: int) -> None:
        return None


class Files:
    """Reads and checks the config.json and the weights of Medusa heads."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, about
        found = _renamed(tensors_of(folder))
        self.tensors = {n: v for n, v in found.items() if not OF_THE_TARGET.match(n)}

    def read(self) -> Published:
        tokens = self.tensors.pop("token_map", None)
        blocks = [name for name in self.tensors if ".block." in name]
        if not any(name.endswith(".bias") for name in blocks):  # vLLM's layout has mostly none
            for name in blocks:
                bias = np.zeros(self.tensors[name].shape[:1], np.float32)
                self.tensors[name.replace(".weight", ".bias")] = bias
        # Some published configurations say fewer heads than there are.
        numbers = {name.split(".")[0] for name in self.tensors if name[0].isdigit()}
        count = max(self._stated("heads"), len(numbers))
        inside = sum(name.startswith("0.block.") for name in self.tensors) // 2
        num_blocks = max(self._stated("blocks"), inside)
        if self.about.get("original_lm_head") and "0.head.weight" in self.tensors:
            head = self.tensors["0.head.weight"]
            self.tensors |= {f"{number}.head.weight": head for number in range(count)}
        names = [_names(number, num_blocks) for number in range(count)]
        self._check(names, num_blocks)
        heads = [[self.tensors[name] for name in own] for own in names]
        return self._with_tokens(heads, self._scale(), tokens)

    def _scale(self) -> float:
        scale = self.about.get("logit_scale", 1.0)
        if type(scale) not in (int, float) or not 0 < scale < np.inf:
            raise self._broken("logit_scale in config.json is no positive number.", repr(scale))
        return float(scale)

    def _with_tokens(
        self, heads: list[Head], scale: float, tokens: NDArray[Any] | None
    ) -> Published:
        """The heads with the target's ids of their tokens. vLLM's layout may have only the frequent
        tokens."""
        size, whole = len(heads[0][-1]), self.about.get("vocab_size")
        if tokens is None:
            kept = self.about.get("truncated_vocab_size")
            if kept not in (None, whole):
                wrong = f"The tensor token_map is missing: {kept!r:.40} draft tokens are not named."
                raise self._broken(wrong, "no token_map")
            return Published(heads, scale, np.arange(size), size)
        if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
            wrong = "token_map is no list of token ids."
            raise self._broken(wrong, f"{tokens.dtype.name} of shape {tokens.shape}")
        ids = np.unique(tokens)
        if type(whole) is not int or ids[0] < 0 or ids[-1] >= whole or len(ids) < len(tokens):
            wrong = "token_map names a token twice, or none of the vocabulary in config.json."
            raise self._broken(wrong, f"{tokens[:4].tolist()}... and vocab_size {whole!r:.40}")
        if size not in (len(tokens), whole):
            wrong = "The heads have neither the tokens of token_map nor the whole vocabulary."
            raise self._broken(wrong, f"{size} rather than {len(tokens)} or {whole}")
        if size > len(tokens):
            cut = {id(head): head[tokens] for *_, head in heads}
            heads = [[*blocks, cut[id(head)]] for *blocks, head in heads]
        return Published(heads, scale, tokens.astype(np.int64), whole)

    def _stated(self, what: str) -> int:
        """The number of "heads" or "blocks" that config.json states; 0 if it states none."""
        stated = next((self.about[name] for name in COUNTS[what] if name in self.about), 0)
        if type(stated) is not int or not 0 <= stated <= len(self.tensors):
            wrong = f"config.json promises more than the {len(self.tensors)} tensors there are."
            raise self._broken(wrong, f"{stated!r:.40} {what}")
        return stated

    def _check(self, names: Sequence[Sequence[str]], num_blocks: int) -> None:
        """Refuse tensors that are missing, superfluous, of wrong shapes, or not finite."""
        expected = [name for own in names for name in own]
        if not expected:
            wrong, cure = "The folder holds no Medusa head.", "Name a folder with one or more."
            raise InputError(explain(wrong, repr(str(self.folder)), cure))
        for name in expected:
            if name not in self.tensors:
                wrong = f"config.json promises {len(names)} Medusa heads of {num_blocks} blocks; "
                wrong += f"the tensor {name} is missing."
                raise self._broken(wrong, f"{len(self.tensors)} tensors")
        if left := sorted(self.tensors.keys() - {*expected}):
            wrong = f"These Medusa heads cannot draft here: nothing is known of {left[0]}."
            raise UnsupportedError(explain(wrong, repr(str(self.folder)), "Use another drafter."))
        logits = self.tensors["0.head.weight"].shape
        if len(logits) != 2:
            wrong = "The tensor 0.head.weight is of another shape."
            raise self._broken(wrong, f"{logits} rather than tokens and width")
        count, width = logits
        for name in expected:
            values = self.tensors[name]
            is_block = ".block." in name
            shape = (width,) if name.endswith("bias") else (width if is_block else count, width)
            if values.shape != shape:
                received = f"{values.shape} rather than {shape}"
                raise self._broken(f"The tensor {name} is of another shape.", received)
            if values.dtype.kind != "f":
                raise self._broken(f"The tensor {name} holds whole numbers.", values.dtype.name)
            if not np.isfinite(values).all():
                raise self._broken(f"The tensor {name} holds NaN or infinity.", name)

    def _broken(self, wrong: str, received: Any) -> InputError:
        cure = f"Download {str(self.folder)!r} again, config.json and weights together."
        return InputError(explain(wrong, received, cure))


def _renamed(tensors: Tensors) -> dict[str, NDArray[Any]]:
    found = {}
    for name, values in tensors.items():
        for pattern, ours in NAMES.items():
            name = re.sub(pattern, ours, name)
        found[name] = values
    return found


def _names(number: int, num_blocks: int) -> list[str]:
    """The names of a head's tensors, in the order in which they are applied."""
    blocks = [f"block.{block}.{part}" for block in range(num_blocks) for part in ("weight", "bias")]
    return [f"{number}.{name}" for name in (*blocks, "head.weight")]
