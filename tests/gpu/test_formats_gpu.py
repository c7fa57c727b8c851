"""Weights of few bits in the compiled pass: the very bits of the same weights written out."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from packing import FORMATS, packed_model  # noqa: E402
from tiny import MIDDLING, ON_DEVICE, Reference, error  # noqa: E402

from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = ON_DEVICE
TEXT = [(7 * place * place + 3) % 5000 for place in range(1000)]
SIZES = MIDDLING | {"num_hidden_layers": 2, "intermediate_size": 1536}
PASSES = ((1,) * 48, (6,) * 8, (16,) * 3, (48,))


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
    torch.manual_seed(1)
    model, plain = packed_model(SIZES, "cuda", dtype, **how)
    target, other = GpuModel(model), GpuModel(plain)
    exact = Reference(plain).logits(TEXT[:48])
    expected = fed(other, (48,))
    assert error(expected, exact) < 0.06
    for sizes in PASSES:
        assert int((fed(target, sizes) != expected).sum()) == 0
    expected = fed(other, (300,))
    for sizes in ((300,), (100, 100, 100), (128, 172)):
        assert int((fed(target, sizes) != expected).sum()) == 0
