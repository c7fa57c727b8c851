"""Each family on a CUDA device: the logits of transformers, and the same bits whatever shares a
pass."""

from __future__ import annotations

from itertools import cycle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from families import FAMILY_SHAPES  # noqa: E402
from tiny import ON_DEVICE, Reference, build  # noqa: E402

from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = ON_DEVICE
LENGTH = 288
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "initializer_range": 0.05,
    "moe_intermediate_size": 96,
}
TEXT = [(7919 * place * place + 3) % SIZES["vocab_size"] for place in range(LENGTH)]


def fed(target: GpuModel, sizes: tuple[int, ...], beside: int = 0) -> torch.Tensor:
    """Logits (N, V) after each token, fed in passes of these sizes in turn, the first of them
    beside another text of so many tokens."""
    rows, at, logits = target.start(2, LENGTH + 1), 0, []
    for size in cycle(sizes):
        part = TEXT[at : at + size]
        if not part:
            return torch.cat(logits)
        if beside and not at:
            scored = target.score(rows, [1, 0], [TEXT[:beside], part], [1, len(part)])
        else:
            scored = target.score(rows, [0], [part], [len(part)])
        logits.append(scored[-1, : len(part)].clone())
        target.commit(rows, [0], [len(part)])
        at += len(part)
    raise AssertionError


@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_a_family_on_the_device(name: str) -> None:
    """Half of the rows' errors count: a token whose experts are nearly tied may have others."""
    model = build(**{**SIZES, **FAMILY_SHAPES[name]}, dtype=torch.bfloat16, device="cuda")
    target = GpuModel(model)
    whole = fed(target, (LENGTH,))
    torch.set_float32_matmul_precision("highest")
    exact = Reference(model).logits(TEXT)
    errors = (whole - exact).pow(2).mean(-1).sqrt() / exact.std(-1)
    assert errors.median() < 0.05
    for sizes in ((1,), (6,), (16, 128)):
        assert torch.equal(fed(target, sizes), whole)
    assert torch.equal(fed(target, (48,), beside=70), whole)
