"""Training may begin with the weights of an earlier drafter instead of random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.base.errors import InputError, explain
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.files import Trained, load
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.fitting import load_shipped
from forerun.drafters.heads.network import Network

SHIPPED, PREFIX = "heads", "heads:"
SAME = ("hidden_size", "num_heads", "num_kv_heads", "head_size", "mlp_size", "layers", "rope_theta")
"""What must agree for weights to mean the same."""


@dataclass(frozen=True)
class Beginning:
    """The drafter that a training run goes on from."""

    name: str
    trained: Trained

    @classmethod
    def named(cls, name: str) -> Beginning:
        """`heads` is the drafter that comes with Forerun; others are folders or hub names, with or
        without `heads:` before them."""
        return cls(name, load_shipped() if name == SHIPPED else load(name.removeprefix(PREFIX)))

    def check(self, target: Fingerprint, design: Design) -> None:
        """Refuse a drafter of another target, or of other sizes than the one to be trained."""
        self.trained.target.check(target)
        theirs = self.trained.design
        if theirs.num_tokens > design.num_tokens:
            wrong = f"The drafter to start from has a draft vocabulary of {theirs.num_tokens}."
            cure = "Give --draft-vocab at least that size, or leave it out."
            raise InputError(explain(wrong, f"--draft-vocab {design.num_tokens}", cure))
        for name in SAME:
            size, expected = getattr(theirs, name), getattr(design, name)
            if size != expected:
                wrong = f"The drafter to start from has another {name}."
                received = f"{size} in {self.name!r}, {expected} to be trained"
                cure = "Start from a drafter of the same sizes, or without --start-from."
                raise InputError(explain(wrong, received, cure))

    def fill(self, network: Network, tokens: NDArray[np.int64]) -> None:
        """Copy the weights; draft tokens (Vd,) that are new keep their row of the head."""
        weights = {name: torch.from_numpy(w) for name, w in self.trained.weights.items()}
        _, places, sources = np.intersect1d(
            tokens, self.trained.tokens, assume_unique=True, return_indices=True
        )
        head: Tensor = network.head.weight.detach().cpu().clone()
        head[places] = weights["head.weight"][sources]
        network.load_state_dict({**weights, "head.weight": head})
