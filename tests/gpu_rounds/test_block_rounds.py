"""`Block` beside captured rounds, in Triton's interpreter: it guesses on the device of the target,
and the rounds judge its guesses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from interpreting import IN_INTERPRETER

pytest.importorskip("triton")

from tiny import build
from tiny_blocks import save_block

import forerun as fr
from forerun import rules
from forerun.drafters import Block
from forerun.engine.engine import Engine
from forerun.gpu.model import GpuModel
from forerun.gpu_rounds.choosing import executor_of
from forerun.gpu_rounds.host_drafts import HostDrafts
from forerun.gpu_rounds.sampled_steps import SampledSteps

pytestmark = IN_INTERPRETER
TARGET = GpuModel(build(num_hidden_layers=3, vocab_size=50))
PROMPTS = [[1, 2, 3], [4, 5, 4, 5, 4], [6]]


@cache
def block() -> Block:
    with TemporaryDirectory() as folder:
        save_block(Path(folder), TARGET.model)
        return Block(folder)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"tree": 3}, marks=pytest.mark.slow)], ids=["chain", "tree"]
)
def test_the_text_does_not_depend_on_the_draft(options: dict[str, Any]) -> None:
    how: dict[str, Any] = {
        "sampling": fr.Sampling(temperature=0.8, seed=3), "max_new_tokens": [2, 4, 3],
        "ignore_eos": True, "batch_size": 2,
    }  # fmt: skip
    plain = fr.generate(TARGET, PROMPTS, drafter=None, **how)
    found = fr.generate(TARGET, PROMPTS, drafter=block(), draft_length=2, **options, **how)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert sum(each.stats.drafted for each in found) > 0
    assert not any(each.stats.notes for each in found)


def test_which_rounds_judge_it() -> None:
    def kind(rule: str = "match", **options: Any) -> Any:
        engine = Engine(
            TARGET, executor_of=executor_of, num_rows=2, drafter=block(), draft_length=2,
            rule=rules.get(rule), **options,
        )  # fmt: skip
        return type(engine._executor)

    assert kind() is HostDrafts
    assert kind(tree=3) is kind("ratio") is SampledSteps
