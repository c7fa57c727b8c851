"""`MTP` beside captured rounds, on a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from mtp_reference import Likely  # noqa: E402
from mtp_stage_reference import Layers  # noqa: E402
from tiny import MIDDLING, ON_DEVICE, build  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.drafters import MTP  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = ON_DEVICE
PROMPTS = [[number, 7, 9, number] * (1 + number % 5) for number in range(24)]


def check_texts(target: GpuModel, drafter: MTP) -> None:
    """Texts with the drafter are those of plain decoding, and it drafts."""
    for temperature in (0.0, 0.8):
        how: dict[str, Any] = {
            "sampling": fr.Sampling(temperature=temperature, seed=3), "max_new_tokens": 24,
            "ignore_eos": True, "batch_size": 8,
        }  # fmt: skip
        plain = fr.generate(target, PROMPTS, drafter=None, **how)
        found = fr.generate(target, PROMPTS, drafter=drafter, draft_length=3, **how)
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert sum(each.stats.drafted for each in found) > 0
        assert not any(each.stats.notes for each in found)


@pytest.mark.parametrize("layout", ["qwen", "mimo"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_24_texts_are_those_of_plain_decoding(dtype: Any, layout: str, tmp_path: Path) -> None:
    target = GpuModel(build(dtype=dtype, device="cuda", **MIDDLING))
    sizes = {name: value for name, value in MIDDLING.items() if name != "num_hidden_layers"}
    drafter = MTP(Likely(layout, **sizes, rms_norm_eps=1e-6).save(tmp_path))
    check_texts(target, drafter)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
STAGES: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "three layers": ("mimo", 3, "llama", {}),
    "experts": ("qwen", 1, "qwen3_moe", EXPERTS),
    "two layers with experts": ("qwen", 2, "qwen3_moe", EXPERTS),
}


@pytest.mark.parametrize("case", STAGES)
def test_texts_beside_modules_of_transformers(case: str, tmp_path: Path) -> None:
    layout, count, kind, more = STAGES[case]
    model = build(kind, dtype=torch.bfloat16, **MIDDLING, **more)
    layers = Layers(layout, model, count)
    layers.make_likely()
    drafter = MTP(layers.save(tmp_path))
    target = GpuModel(model.to("cuda"))
    check_texts(target, drafter)
