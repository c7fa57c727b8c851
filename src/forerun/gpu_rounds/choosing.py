"""Chooses the executor of an engine's rounds: captured rounds on a GPU, or the stepwise
executor."""

from __future__ import annotations

from typing import Any

from forerun.engine.stepwise import Executor, Setup, step_by_step
from forerun.models.base import GpuPass
from forerun.rules import Block, Match, Ratio


def executor_of(setup: Setup) -> Executor:
    """The fastest executor that supports this target, drafter and rule. If its rounds are captured
    for a few draft lengths, it has an attribute `ladder` (`engine/steering/ladder_policy.py`)."""
    target: Any = setup.target
    if not getattr(target, "decides_on_device", False):
        return step_by_step(setup)
    from forerun.gpu_rounds.sampled_steps import SampledSteps

    captured = _captured(setup) if isinstance(target, GpuPass) else None
    return captured or SampledSteps(target, setup.state, setup.drafting, setup.rule)


def _captured(setup: Setup) -> Executor | None:
    """The executor of captured rounds if all rows fit one pass, and the drafter (if any) is on the
    same device; else None."""
    from forerun.drafters.forced import Forced
    from forerun.drafters.heads import Heads
    from forerun.drafters.model import Model
    from forerun.gpu.shapes import MOST_OF_ROUND
    from forerun.gpu_rounds.device_drafter import DeviceDrafter
    from forerun.gpu_rounds.device_heads import device_heads, tree_for
    from forerun.gpu_rounds.executor import Captured
    from forerun.gpu_rounds.host_drafts import HostDrafts, drafts_beside

    target: Any = setup.target
    _, state, drafting, rule, tree, draft_length = setup
    drafter, num_rows = drafting.drafter, len(state.lengths)
    if type(rule) not in (Match, Ratio, Block) or num_rows > MOST_OF_ROUND:
        return None
    if drafter is None:
        return Captured(target, state, DeviceDrafter(drafting), rule, 0)
    # What grammars force is not drafted here.
    inner: Any = drafter.inner if type(drafter) is Forced else drafter
    is_chain = tree is None
    shape = None if tree is None else tree_for(tree, draft_length, rule, num_rows)
    is_static = type(inner) is Heads and (is_chain or shape is not None)
    if is_static and (heads := device_heads(inner, drafting, state)):
        return Captured(target, state, heads, rule, draft_length, shape)
    if is_chain and drafts_beside(drafter, rule):
        return HostDrafts(target, state, drafting, rule, draft_length)
    other: Any = inner.model if type(inner) is Model else None
    if (
        is_chain
        and isinstance(other, GpuPass)
        and other.vocab_size == target.vocab_size
        and other.device == target.device
        and not (rule.needs_draft_probs and inner.temperature is not None)
    ):
        model = DeviceDrafter(drafting, inner.temperature, other.max_context)
        return Captured(target, state, model, rule, draft_length)
    return None
