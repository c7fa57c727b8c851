"""`MTP` beside captured rounds, in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interpreting import IN_INTERPRETER

pytest.importorskip("triton")

from mtp_reference import Layer
from mtp_stage_reference import Layers
from tiny import COMMON, build

import forerun as fr
from forerun import rules
from forerun.drafters import MTP
from forerun.engine.engine import Engine
from forerun.gpu.model import GpuModel
from forerun.gpu_rounds.choosing import executor_of
from forerun.gpu_rounds.host_drafts import HostDrafts

pytestmark = IN_INTERPRETER
PROMPTS = [[1, 2, 3], [4, 5, 4, 5, 4], [6]]
SIZES = {name: COMMON[name] for name in ("hidden_size", "intermediate_size", "head_dim")}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50}


def check_texts(target: GpuModel, drafter: MTP) -> None:
    """Texts with the drafter are those of plain decoding, and it drafts."""
    how: dict[str, Any] = {
        "sampling": fr.Sampling(temperature=0.8, seed=3), "max_new_tokens": [2, 4, 3],
        "ignore_eos": True, "batch_size": 2,
    }  # fmt: skip
    plain = fr.generate(target, PROMPTS, drafter=None, **how)
    found = fr.generate(target, PROMPTS, drafter=drafter, draft_length=2, **how)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert sum(each.stats.drafted for each in found) > 0
    assert not any(each.stats.notes for each in found)


@pytest.mark.parametrize("layout", ["mimo", pytest.param("qwen", marks=pytest.mark.slow)])
def test_the_text_does_not_depend_on_the_draft(layout: str, tmp_path: Path) -> None:
    target = GpuModel(build(num_hidden_layers=2, vocab_size=50))
    drafter = MTP(Layer(layout, **SIZES).save(tmp_path))
    check_texts(target, drafter)
    engine = Engine(target, executor_of=executor_of, num_rows=2, drafter=drafter, draft_length=2,
                    rule=rules.get("match"))  # fmt: skip
    assert type(engine._executor) is HostDrafts


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
STAGES: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "two layers": ("mimo", 2, "llama", {}),
    "experts": ("qwen", 1, "qwen3_moe", EXPERTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STAGES)
def test_modules_of_transformers_beside_captured_rounds(case: str, tmp_path: Path) -> None:
    layout, count, kind, more = STAGES[case]
    model = build(kind, num_hidden_layers=2, vocab_size=50, **more)
    layers = Layers(layout, model, count)
    layers.make_likely()
    drafter = MTP(layers.save(tmp_path))
    target = GpuModel(model)
    check_texts(target, drafter)
