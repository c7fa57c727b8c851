"""Weights of few bits in the compiled pass: the very bits of the same weights written out."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from families import WINDOWS  # noqa: E402
from packing import FORMATS, packed_model  # noqa: E402
from tiny import MIDDLING, ON_DEVICE, Reference, error  # noqa: E402

from forerun.doctor.rounding import ROUTED_SHARE  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = ON_DEVICE
TEXT = [(7 * place * place + 3) % 5000 for place in range(1000)]
SIZES = MIDDLING | {"num_hidden_layers": 2, "intermediate_size": 1536}
PASSES = ((1,) * 48, (6,) * 8, (16,) * 3, (48,))
QWEN = SIZES | {
    "kind": "qwen3_moe", "moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 4,
}  # fmt: skip
GPT_OSS = SIZES | WINDOWS | {
    "kind": "gpt_oss", "hidden_size": 576, "intermediate_size": 576, "num_local_experts": 16,
    "num_experts_per_tok": 4, "sliding_window": 32,
}  # fmt: skip
EXPERTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt-oss, float4": (GPT_OSS, {"number": "e2m1", "group": 32}),
    "qwen3-moe, float8 in blocks": (
        QWEN, {"number": "e4m3", "group": 128, "rows": 128, "scale": torch.float32}
    ),
    "qwen3-moe, int4": (QWEN, FORMATS["int4, groups with zeros"]),
}  # fmt: skip


def fed(target: GpuModel, sizes: tuple[int, ...]) -> Any:
    """Logits after every token of a text that is fed in passes of these sizes."""
    rows, at, found = target.start(1, 1024), 0, []
    for size in sizes:
        found.append(target.score(rows, [0], [TEXT[at : at + size]], [size])[0].clone())
        target.commit(rows, [0], [size])
        at += size
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("how", [pytest.param(how, id=name) for name, how in FORMATS.items()])
def test_passes_of_all_sizes_have_the_bits_of_the_weights_written_out(
    how: dict[str, Any], dtype: Any
) -> None:
    _check(SIZES, how, dtype)


@pytest.mark.parametrize("name", EXPERTS)
def test_so_have_those_with_experts(name: str) -> None:
    _check(*EXPERTS[name], torch.bfloat16, most=ROUTED_SHARE)


def _check(sizes: dict[str, Any], how: dict[str, Any], dtype: Any, most: float = 0.06) -> None:
    torch.manual_seed(1)
    model, plain = packed_model(sizes, "cuda", dtype, **how)
    target, other = GpuModel(model), GpuModel(plain)
    exact = Reference(plain).logits(TEXT[:48])
    expected = fed(other, (48,))
    assert error(expected, exact) < most
    for passes in PASSES:
        assert int((fed(target, passes) != expected).sum()) == 0
    expected = fed(other, (300,))
    for passes in ((300,), (100, 100, 100), (128, 172)):
        assert int((fed(target, passes) != expected).sum()) == 0
