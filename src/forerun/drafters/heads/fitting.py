"""Checks that a trained drafter fits a target, and chooses its runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.heads.files import Trained, load
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.runner import Runner
from forerun.models.base import CpuPass, Inspectable, LanguageModel

SHIPPED = Path(__file__).parent / "shipped" / "smollm2-135m-instruct"


def load_shipped() -> Trained:
    """The drafter that comes with Forerun for its default model."""
    if not SHIPPED.is_dir():
        wrong = "This installation comes without a trained drafter."
        cure = "Name one that `forerun train` wrote, or install Forerun again."
        raise InputError(explain(wrong, repr(SHIPPED.name), cure))
    return load(SHIPPED)


def fit(trained: Trained, target: LanguageModel) -> Runner:
    """Make the runner for this target and its device; raises if the drafter was trained for
    another."""
    check(trained.target, target)
    subject: Any = target
    own = trained.embedding
    if isinstance(target, CpuPass) and trained.design.num_layers == 1:  # needs no torch
        from forerun.drafters.heads.lean_runner import LeanRunner

        embedding = subject.embedding if own is None else own
        return LeanRunner(trained.design, trained.weights, embedding)
    import torch

    from forerun.drafters.heads.network import Network, embedding_of
    from forerun.drafters.heads.torch_runner import TorchRunner

    is_lean = isinstance(target, CpuPass)
    table = torch.from_numpy(subject.embedding) if is_lean else embedding_of(subject.model)
    network = Network(trained.design).to(table.device, table.dtype)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in trained.weights.items()})
    return TorchRunner(network, table if own is None else torch.from_numpy(own).to(table))


def check(expected: Fingerprint, target: LanguageModel) -> None:
    """Raise if the drafter was trained for another target, or if the target's hidden states cannot
    be read."""
    model = getattr(target, "model", None) if not isinstance(target, CpuPass) else target
    if not isinstance(target, Inspectable) or model is None:
        wrong = f"{expected.name}'s drafter reads hidden states, and {target.name} shows none."
        cure = "Use a transformers model, or a drafter that needs none."
        raise UnsupportedError(explain(wrong, type(target).__name__, cure))
    is_lean = isinstance(target, CpuPass)
    expected.check(Fingerprint.of_lean(target) if is_lean else Fingerprint.of(model, target.name))
