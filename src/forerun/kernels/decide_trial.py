"""Decides a trial by kernels: the twin of `Rule.decide` for the trials that `verify` hands over.

The kernels check contents where they read them, and the faults they report come back with the
result in one synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import torch

from forerun.base.errors import InputError
from forerun.kernels.decide import Round, decide_block, decide_match, decide_ratio
from forerun.kernels.scratch import Outcome, Scratch, Tensor
from forerun.rules import refusals
from forerun.rules.base import Rule, Trial
from forerun.rules.rows import Logits

LAUNCHES: dict[str, Callable[..., None]] = {
    "match": decide_match,
    "ratio": decide_ratio,
    "block": decide_block,
}
TARGET_ROW, DRAFT_ROW, IMPOSSIBLE, OUTSIDE = 1, 2, 3, 4
"""The kinds of faults.  A fault is kind + 16 * slot."""


def decide(
    trial: Trial, rule: Rule, seeds: Sequence[int], positions: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Judge a trial: (reached (B,), extra (B,)), as `Rule.decide` returns them.

    Raises InputError for logits or tokens in which the kernels found a fault.
    """
    assert isinstance(trial.target, Logits), "only logits are covered"
    logits = aligned(trial.target.logits)
    num_sequences, num_rows, vocab_size = logits.shape
    device = logits.device
    out = Outcome.allocate(num_sequences, device)
    is_match = rule.name == "match"
    scratch = _scratch(device, _queue(device), num_sequences, num_rows, vocab_size, is_match)
    draft_logits = parents = None
    if not is_match and isinstance(trial.draft, Logits):
        draft_logits = aligned(trial.draft.logits)
    if trial.trees is not None:
        parents = trial.parents.expand(trial.tokens.shape).to(torch.int32).contiguous()
    made = Round(
        logits, trial.tokens.contiguous(), trial.lengths.to(torch.int32),
        torch.full((num_sequences,), trial.target.temperature, device=device),
        torch.tensor(np.array(seeds, dtype=np.uint64).view(np.int64), device=device),
        torch.tensor(positions, dtype=torch.int64, device=device), draft_logits, parents,
    )  # fmt: skip
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        LAUNCHES[rule.name](made, scratch, out)
    faults = out.fault.tolist()
    if any(faults):
        raise complaint(trial, faults)
    return out.reached.to(torch.int64), out.extra


def aligned(table: Tensor) -> Tensor:
    """The tensor, or a copy that is contiguous and at an address that allows the widest reads: the
    order of sums, and so their last bits, must not depend on the address."""
    table = table.contiguous()
    return table if table.data_ptr() % 16 == 0 else table.clone()


def complaint(trial: Trial, faults: Sequence[int]) -> InputError:
    """The error for the first sequence that has a fault."""
    row = next(row for row, fault in enumerate(faults) if fault)
    slot, kind = divmod(faults[row], 16)
    if kind == TARGET_ROW:
        return refusals.not_finite("target_logits", row, slot, "a row that a kernel refused")
    if kind == DRAFT_ROW:
        return refusals.not_finite("draft logits", row, slot, "a row that a kernel refused")
    token = int(trial.tokens[row, slot])
    if kind == IMPOSSIBLE:
        return refusals.impossible(row, slot, token)
    assert isinstance(trial.target, Logits), "only logits are covered"
    return refusals.outside(row, slot, token, trial.target.logits.shape[2])


def _queue(device: Any) -> tuple[int, int]:
    """The thread that launches and the stream that its launches go to. Launches of two calls never
    mix there, so scratch memory is kept for each pair."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return get_ident(), stream


@lru_cache(maxsize=8)
def _scratch(
    device: Any,
    queue: tuple[int, int],
    num_sequences: int,
    num_rows: int,
    vocab_size: int,
    is_match: bool,
) -> Scratch:
    return Scratch.allocate(num_sequences, num_rows, vocab_size, device, for_match_only=is_match)
