"""The cost of a pass: seconds for `tokens` tokens of each of `batch` requests.

Drafting pays as long as a pass over K + 1 tokens costs about as much as a pass over one.  That is
true while the pass waits for weights to arrive from memory, and ends where batch times tokens keeps
the arithmetic units busy.  `Roofline` computes that point from four numbers of a data sheet;
`MeasuredCosts` takes it from measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.theory.arguments import as_cost, as_count
from forerun.theory.speed import relative_pass


class PassCost(Protocol):
    """Seconds of one pass over `tokens` tokens of each of `batch` requests."""

    def __call__(self, batch: int, tokens: int) -> float: ...


@dataclass(frozen=True)
class Roofline:
    """The slower of moving bytes and doing arithmetic, plus a fixed overhead.

    Use achieved rates, not peaks: 80% of the bandwidth and 60% of the arithmetic are common.
    """

    weight_bytes: float  # read once per pass, whatever the batch
    bandwidth: float  # bytes per second
    compute: float  # floating-point operations per second
    kv_bytes_per_token: float = 0.0  # 2 * layers * kv heads * head size * bytes per number
    context: int = 0  # tokens in the cache of each request
    attention_width: int = 0  # layers * heads * head size
    bytes_per_weight: float = 2.0
    overhead: float = 0.0  # seconds: launches, communication

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "bandwidth", "compute", "bytes_per_weight"):
            as_cost(name, getattr(self, name))
        for name in ("kv_bytes_per_token", "overhead"):
            as_cost(name, getattr(self, name), may_be_zero=True)
        for name in ("context", "attention_width"):
            as_count(name, getattr(self, name))

    def __call__(self, batch: int, tokens: int) -> float:
        num_weights = self.weight_bytes / self.bytes_per_weight
        flops = batch * tokens * (2 * num_weights + 4 * self.context * self.attention_width)
        moved = self.weight_bytes + batch * self.context * self.kv_bytes_per_token
        return max(moved / self.bandwidth, flops / self.compute) + self.overhead


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds by (batch, tokens), interpolated linearly; raises outside the measured range."""

    seconds: Mapping[tuple[int, int], float]

    def __post_init__(self) -> None:
        if not self.seconds:
            cure = "Time at least one pass: {(batch, tokens): seconds}."
            raise InputError(explain("The cost table is empty.", "{}", cure))
        for (batch, tokens), cost in self.seconds.items():
            as_count("batch", batch, minimum=1)
            as_count("tokens", tokens, minimum=1)
            as_cost(f"The cost of {(batch, tokens)}", cost)

    def __call__(self, batch: int, tokens: int) -> float:
        batches = sorted({measured for measured, _ in self.seconds})
        self._check_inside("batch", batch, batches)
        below = max(b for b in batches if b <= batch)
        above = min(b for b in batches if b >= batch)
        ends = [self._at_measured(b, tokens) for b in (below, above)]
        return float(np.interp(batch, [below, above], ends)) if below < above else ends[0]

    def _at_measured(self, batch: int, tokens: int) -> float:
        """Seconds at a batch size that was measured, interpolated over tokens."""
        row = sorted((t, cost) for (b, t), cost in self.seconds.items() if b == batch)
        lengths = [t for t, _ in row]
        self._check_inside(f"tokens at batch {batch}", tokens, lengths)
        return float(np.interp(tokens, lengths, [cost for _, cost in row]))

    @staticmethod
    def _check_inside(what: str, value: int, measured: Sequence[int]) -> None:
        if not measured[0] <= value <= measured[-1]:
            cure = f"Measured {what}: {measured[0]} to {measured[-1]}; measure further or ask less."
            wrong = "Costs are not extrapolated."
            raise InputError(explain(wrong, f"{what.split()[0]} = {value}", cure))


@dataclass(frozen=True)
class CostModel:
    """The cost of a round and of plain decoding, from the costs of their passes.

    target_cost: the seconds of a pass as a function; or relative costs as in `theory.speedup`, a
    number or a list in units of a pass over one token. Relative costs hold at every batch size.
    draft_cost: the seconds of a draft step as a function; or a number, the share of a one-token
    pass at the same batch size.
    """

    draft_cost: float | PassCost
    target_cost: float | Sequence[float] | PassCost = 1.0
    overhead: float = 0.0  # per round, outside both models, in the unit of target_cost

    def __post_init__(self) -> None:
        as_cost("overhead", self.overhead, may_be_zero=True)

    def plain(self, batch: int = 1) -> float:
        """The cost of a step of plain decoding, which emits one token for every request."""
        return self.target_pass(batch, 1)

    def round(self, batch: int, draft_length: int) -> float:
        """The cost of a round: K draft steps, one target pass over K + 1 tokens, and the overhead.
        K = 0 is plain decoding."""
        if draft_length == 0:
            return self.plain(batch)
        drafting = draft_length * self.draft_step(batch)
        return drafting + self.target_pass(batch, draft_length + 1) + self.overhead

    def target_pass(self, batch: int, tokens: int) -> float:
        """The cost of a target pass over `tokens` tokens of each request."""
        if callable(self.target_cost):
            return as_cost("target_cost", self.target_cost(batch, tokens))
        return relative_pass(self.target_cost, tokens)

    def draft_step(self, batch: int) -> float:
        """The cost of drafting one token for each request."""
        if callable(self.draft_cost):
            return as_cost("draft_cost", self.draft_cost(batch, 1), may_be_zero=True)
        return as_cost("draft_cost", self.draft_cost, may_be_zero=True) * self.plain(batch)
