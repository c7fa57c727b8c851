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
    """The drafter that comes with Forerun, for its default model."""
    if not SHIPPED.is_dir():
        wrong = "This installation comes without a trained drafter."
        cure = "Name one that `forerun train` wrote, or install Forerun again."
        raise InputError(explain(wrong, repr(SHIPPED.name), cure))
    return load(SHIPPED)


def fit(trained: Trained, target: LanguageModel) -> Runner:
    """The runner for this target and its device; raises if the drafter was trained for another."""
    if isinstance(target, Inspectable) and isinstance(target, CpuPass):
        return _fit_lean(trained, target)
    model = getattr(target, "model", None)
    if not isinstance(target, Inspectable) or model is None:
        wrong = (
            f"{trained.target.name}'s drafter reads hidden states, and {target.name} shows none."
        )
        cure = "Use a transformers model, or a drafter that needs none."
        raise UnsupportedError(explain(wrong, type(target).__name__, cure))
    trained.target.check(Fingerprint.of(model, target.name))
    import torch

    from forerun.drafters.heads.network import Network, embedding_of
    from forerun.drafters.heads.torch_runner import TorchRunner

    network = Network(trained.design)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in trained.weights.items()})
    embedding = embedding_of(model)
    return TorchRunner(network.to(embedding.device, embedding.dtype), embedding)


def _fit_lean(trained: Trained, target: Any) -> Runner:
    """On the lean CPU pass, for a target that is on it: neither needs torch."""
    from forerun.drafters.heads.lean_runner import LeanRunner

    trained.target.check(Fingerprint.of_lean(target))
    return LeanRunner(trained.design, trained.weights, target.embedding)
