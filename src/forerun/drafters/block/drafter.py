"""A drafter that makes all guesses of a round in one pass of a small network (DFlash, DFlash2 or
our own)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.base.arrays import HostArray
from forerun.drafters.block.dflash import KIND, KINDS, PublishedBlock
from forerun.drafters.block.dflash import load as load_published
from forerun.drafters.folders import description_of, find, kind_of, refuse
from forerun.drafters.heads.few_racers import Node
from forerun.drafters.heads.files import Trained, load
from forerun.drafters.heads.fitting import check
from forerun.drafters.heads.listening import Listening
from forerun.drafters.heads.runner import Logits
from forerun.drafters.one_pass import OnePass
from forerun.models.base import CpuPass
from forerun.trees.tree import ROOT


class Block(OnePass):
    """Draft with a network, trained for this target, that guesses a whole block in one pass.

    source: a folder that `forerun train --kind block` wrote, or one with a DFlash draft model, or
    the name of either on the Hugging Face hub.

    With a selector (DFlash2) a guess depends on the one before it: the tables of the places are
    walked, by the target's race where its noise is shared.

    It makes no guesses in a request's first round, in which the target reads the prompt.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__()
        self.source = _load(source)
        is_published = isinstance(self.source, PublishedBlock)
        self.name = f"{KIND if is_published else 'block'}:{source}"
        trained = self.source.trained if isinstance(self.source, PublishedBlock) else self.source
        self.selector = self.source.selector if isinstance(self.source, PublishedBlock) else None
        design: Any = trained.design
        self.design = design
        self.tokens = trained.tokens  # (Vd,): the target's ids
        self.layers: tuple[int, ...] = trained.design.layers
        self.num_guesses: int = design.num_guesses

    def fit(self, target: Any) -> Any:
        return runner_for(self.source, target)

    def children_of(
        self, state: Listening, begun: Logits, level: int, nodes: Sequence[Node], rows: list[int]
    ) -> tuple[HostArray, Logits, Sequence[int]]:
        if self.selector is None:
            return super().children_of(state, begun, level, nodes, rows)
        previous = [
            growth.text.tokens[-1] if node == ROOT else growth.tokens[node]
            for growth, node in nodes
        ]
        tokens, logits = self.selector.candidates(begun[:, level], rows, previous)
        return tokens, logits, range(len(nodes))


def _load(source: str | Path) -> Trained | PublishedBlock:
    """Load our own or a published drafter, depending on what the folder holds."""
    folder = find(source)
    kind = kind_of(folder, description_of(folder))
    if kind in KINDS:
        return load_published(folder)
    if kind != "block":
        refuse(folder, kind, "a block drafter that Forerun trained, or a DFlash draft model")
    return load(folder)


def runner_for(source: Trained | PublishedBlock, target: Any) -> Any:
    """Make the runner for this target and its device; raises if the drafter was trained for
    another."""
    trained = source.on(target) if isinstance(source, PublishedBlock) else source
    check(trained.target, target)
    design: Any = trained.design
    own = trained.embedding
    if isinstance(target, CpuPass):  # needs no torch
        from forerun.drafters.block.lean_runner import LeanBlockRunner

        subject: Any = target
        rows = subject.embeddings_of if own is None else own.__getitem__
        return LeanBlockRunner(design, trained.weights, rows)
    import torch

    from forerun.drafters.block.network import BlockNetwork
    from forerun.drafters.block.torch_runner import TorchBlockRunner
    from forerun.drafters.heads.network import embedding_of

    table = embedding_of(target.model)
    network = BlockNetwork(design).to(table.device, table.dtype)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in trained.weights.items()})
    return TorchBlockRunner(network, table if own is None else torch.from_numpy(own).to(table))
