"""Muon for the matrices inside the network, AdamW for its vocabulary and norms."""

from __future__ import annotations

from typing import Any

import torch

from forerun.drafters.heads.network import Network

WARM_UP = 0.02  # of the budget
MUON_RATE = 2.0  # times the rate of AdamW


def usual_optimiser(device: str) -> str:
    """Muon computes in bfloat16: a CPU without such products would take many times as long."""
    return "muon" if device != "cpu" or _has_bfloat16_products() else "adamw"


def _has_bfloat16_products() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # this build of torch has no oneDNN
        return False


class Optimiser:
    """Both optimisers; the rate rises for 2% of the budget, then falls linearly to 0."""

    def __init__(self, network: Network, rate: float, *, muon: bool) -> None:
        self.rate = rate
        named = dict(network.named_parameters())
        inner = [p for name, p in named.items() if p.ndim == 2 and name != "head.weight"]
        others = [p for name, p in named.items() if p.ndim != 2 or name == "head.weight"]
        self.parts: list[Any] = []
        self.rates: list[float] = []  # of each part, as a multiple of the rate of AdamW
        if muon and hasattr(torch.optim, "Muon"):
            self.parts.append(
                torch.optim.Muon(inner, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
            )
            self.rates.append(MUON_RATE)
        else:
            others += inner
        self.parts.append(torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.01))
        self.rates.append(1.0)
        self.parameters = list(named.values())

    def step(self, share: float) -> None:
        """Apply and clear the gradients; `share` of the budget is spent."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        rate = self.rate * min(1.0, share / WARM_UP) * max(0.0, 1 - share)
        for part, times in zip(self.parts, self.rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * times
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[Any]:
        return [part.state_dict() for part in self.parts]

    def restore(self, state: list[Any]) -> None:
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)
