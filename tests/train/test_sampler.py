"""The kernel for rows of different length, in Triton's interpreter, against plain products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402

from forerun.train.sampler import by_kernel, slot_attention  # noqa: E402

pytestmark = IN_INTERPRETER


@pytest.mark.parametrize(("heads", "shared", "size"), [(9, 3, 64), (2, 2, 16)])
def test_it_attends_to_the_slots_up_to_each_position(heads, shared, size):
    torch.manual_seed(0)
    num_slots, positions = 100, torch.tensor([[0], [1], [63], [64], [99]])
    query = torch.randn(len(positions), heads, 1, size)
    key, value = torch.randn(2, len(positions), shared, num_slots, size)
    mask = torch.zeros(len(positions), 1, 1, num_slots)
    mask[(torch.arange(num_slots) > positions)[:, None, None]] = float("-inf")
    plain, _ = slot_attention(None, query, key, value, mask, size**-0.5, position_ids=positions)
    value[(torch.arange(num_slots) > positions)[:, None].expand(-1, shared, -1)] = float("nan")
    half = (tensor.half() for tensor in (query, key, value))
    kernel = by_kernel(*half, positions, size**-0.5)
    assert kernel.shape == plain.shape
    torch.testing.assert_close(kernel.float(), plain, atol=5e-3, rtol=5e-3)
