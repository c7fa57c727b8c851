"""Medusa heads: each reads the target's last hidden state and guesses one token further ahead.

No head knows what the others guess, so all nodes of a level share one law.  In a tree each level
takes the likeliest, or those that arrive first in the target's race.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.folders import description_of, find, kind_of, refuse, tensors_of
from forerun.drafters.forks import fork, grow_racing, grow_sampled
from forerun.drafters.level_growth import Growth
from forerun.drafters.texts import Texts
from forerun.models.base import Inspectable, LanguageModel, identity
from forerun.rules.types import Drawn
from forerun.trees.sibling_laws import Children

Head = list[Any]
"""Weight (D, D) and bias (D,) of each block, and the weight (V, D) of the logits."""


@dataclass
class MedusaRows:
    """The rows of one engine."""

    vocab_size: int
    heads: list[Head]
    texts: Texts = field(default_factory=Texts)
    states: dict[int, Any] = field(default_factory=dict)  # (D,), of the token before the newest
    logits: dict[int, list[Any]] = field(default_factory=dict)  # (V,) of the first heads, after it


class Medusa:
    """Draft with Medusa heads that were trained for this target.

    source: their folder, with config.json and the weights, or a name on the Hugging Face hub.

    It has nothing to say in a request's first round, in which the target reads the prompt.
    """

    def __init__(self, source: str | Path) -> None:
        folder = find(source)
        about = description_of(folder)
        if (kind := kind_of(folder, about)) != "medusa":
            refuse(folder, kind, "Medusa heads")
        self.name = f"medusa:{source}"
        self.layers: tuple[int, ...] = ()  # the last of its target, once that is known
        self._heads = _read(folder, about)
        self._placed: WeakKeyDictionary[Any, list[Head]] = WeakKeyDictionary()

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> MedusaRows:
        if not isinstance(target, Inspectable):
            wrong = f"Medusa heads read hidden states, and {target.name} shows none."
            cure = "Use a transformers model, or a drafter that needs none."
            raise UnsupportedError(explain(wrong, type(target).__name__, cure))
        expected = target.vocab_size, target.hidden_size
        received = self._heads[0][-1].shape
        if received != expected:
            wrong = "These Medusa heads were trained for another target: vocabulary and width."
            cure = f"Use them with their own, not with {target.name}."
            raise UnsupportedError(explain(wrong, f"{received} rather than {expected}", cure))
        if self.layers and self.layers != (target.num_layers,):
            wrong = "This drafter already drafts for a target with another number of layers."
            cure = "Make a second one: forerun.drafters.Medusa(...)."
            raise UnsupportedError(explain(wrong, target.num_layers, cure))
        self.layers = (target.num_layers,)
        return MedusaRows(target.vocab_size, self._on(target))

    def enter(self, state: MedusaRows, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.texts.enter(row, tokens, num_prompt)

    def propose(
        self, state: MedusaRows, turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        growths = []
        for turn in turns:
            depth = min(turn.height, len(state.heads)) if turn.row in state.states else 0
            growths.append(Growth(turn, state.texts[turn.row], depth))
        while busy := [growth for growth in growths if growth.frontier]:
            forks = []
            for growth in busy:
                logits = _logits(state, growth.turn.row, growth.level)
                for node in growth.frontier:
                    parent = fork(growth, node, logits, state.vocab_size)
                    forks += [parent] if parent else []
            if shared_noise:
                grow_racing(forks)
            else:
                grow_sampled(forks, Children.GREEDY_PLUS_ONE)
            for growth in busy:
                growth.next_level()
        drawn = Drawn.SHARED if shared_noise else Drawn.SAMPLED
        return [growth.guess(drawn) for growth in growths]

    def observe(self, state: MedusaRows, outcomes: Sequence[Outcome]) -> None:
        state.texts.observe(outcomes)
        for outcome in outcomes:
            row, states = outcome.row, outcome.states
            if states is not None and len(states):
                is_last = outcome.num_processed == len(state.texts[row].tokens) - 1
                self._forget(state, row)
                if is_last:
                    state.states[row] = states[-1]

    def release(self, state: MedusaRows, row: int) -> None:
        state.texts.release(row)
        self._forget(state, row)

    def _forget(self, state: MedusaRows, row: int) -> None:
        state.states.pop(row, None)
        state.logits.pop(row, None)

    def _on(self, target: Any) -> list[Head]:
        """The heads in the place and precision of the target's states."""
        import torch

        key = identity(target)
        if key not in self._placed:
            model = None if hasattr(target, "packed") else target.model
            like = torch.zeros(0) if model is None else model.get_input_embeddings().weight
            self._placed[key] = [
                [torch.from_numpy(part).to(like.device, like.dtype) for part in head]
                for head in self._heads
            ]
        return self._placed[key]


def _logits(state: MedusaRows, row: int, level: int) -> NDArray[np.float32]:
    """The law of a level as logits (V,); heads are run when their level is asked for."""
    import torch

    known = state.logits.setdefault(row, [])
    with torch.inference_mode():
        while len(known) <= level:
            *blocks, head = state.heads[len(known)]
            hidden = torch.as_tensor(state.states[row]).to(head)
            for weight, bias in zip(blocks[::2], blocks[1::2], strict=True):
                hidden = hidden + torch.nn.functional.silu(weight @ hidden + bias)
            known.append((head @ hidden).float().cpu().numpy())
    found: NDArray[np.float32] = known[level]
    return found


def _read(folder: Path, about: Mapping[str, Any]) -> list[Head]:
    """The tensors of each head, checked against config.json."""
    tensors = {name.removeprefix("medusa_head."): v for name, v in tensors_of(folder).items()}
    inside = sum(name.startswith("0.") and name.endswith(".bias") for name in tensors)
    num_layers = about.get("medusa_num_layers", inside)
    count = about.get("medusa_num_heads", len({name.split(".")[0] for name in tensors}))
    for stated in (num_layers, count):
        if type(stated) is not int or not 0 <= stated <= len(tensors):
            wrong = f"config.json promises more than the {len(tensors)} tensors that there are."
            received = f"{count!r:.40} heads of {num_layers!r:.40} blocks"
            raise InputError(explain(wrong, received, "Download the folder again."))
    heads: list[Head] = []
    for number in range(count):
        blocks = [f"{number}.{layer}.linear" for layer in range(num_layers)]
        names = [f"{block}.{part}" for block in blocks for part in ("weight", "bias")]
        names.append(f"{number}.{num_layers}.weight")
        for name in names:
            if name not in tensors:
                wrong = f"config.json promises {count} Medusa heads of {num_layers} blocks; the "
                wrong += f"tensor {name} is missing."
                raise InputError(explain(wrong, repr(str(folder)), "Download the folder again."))
            if not np.isfinite(tensors[name]).all():
                wrong, cure = f"The tensor {name} holds NaN or infinity.", "Download it again."
                raise InputError(explain(wrong, repr(str(folder)), cure))
        heads.append([tensors[name] for name in names])
        width = heads[0][-1].shape[-1]
        shapes = [(width, width), (width,)] * num_layers + [(len(heads[0][-1]), width)]
        for name, shape in zip(names, shapes, strict=True):
            if tensors[name].shape != shape:
                wrong, cure = f"The tensor {name} is of another shape.", "Download it again."
                received = f"{tensors[name].shape} rather than {shape}"
                raise InputError(explain(wrong, received, cure))
    if not heads:
        wrong, cure = "The folder holds no Medusa head.", "Name a folder with one or more."
        raise InputError(explain(wrong, repr(str(folder)), cure))
    return heads
