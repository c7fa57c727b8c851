"""Thresholds on a CUDA device, in rows of the length of a real vocabulary."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from forerun.kernels.scratch import CutScratch  # noqa: E402
from forerun.kernels.truncation import find_thresholds  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="needs compiled kernels"),
]
VOCAB_SIZE, NUM_ROWS = 128256, 64
TOP_K = (0, 1, 20, 1000, 5000, 128255)
TOP_P = (1.0, 0.5, 0.9, 0.999)


def columns(options: list[tuple[int, float]], heat: float) -> tuple[torch.Tensor, ...]:
    count = len(options)
    return (
        torch.zeros(count, dtype=torch.int32, device="cuda"),
        torch.full((count,), heat, device="cuda"),
        torch.tensor([k for k, _ in options], dtype=torch.int32, device="cuda"),
        torch.tensor([p for _, p in options], device="cuda"),
        torch.zeros(count, device="cuda"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("deviation", [0.2, 2.5, 8.0])
def test_rows_keep_what_their_options_say(deviation: float, dtype: torch.dtype) -> None:
    """Of flat laws, of which the last program searches all of the row, and of peaked ones; alone
    the same number as beside 63 others."""
    torch.manual_seed(1)
    logits = deviation * torch.randn(NUM_ROWS, 1, VOCAB_SIZE, device="cuda")
    logits = logits.to(dtype)
    pairs = [(k, p) for k in TOP_K for p in TOP_P]
    options = [pairs[row % len(pairs)] for row in range(NUM_ROWS)]
    scratch = CutScratch.allocate(NUM_ROWS, VOCAB_SIZE, "cuda")
    found = torch.empty((NUM_ROWS, 1), device="cuda")
    for _ in range(2):  # the counters are zero again
        find_thresholds(logits, *columns(options, 0.9), found, scratch, more=1)
    for row, (top_k, top_p) in enumerate(options):
        values = logits[row, 0].double()
        threshold = found[row, 0].double()
        kept = values >= threshold
        alone = torch.empty((1, 1), device="cuda")
        how = columns([(top_k, top_p)], 0.9)
        find_thresholds(logits[row : row + 1], *how, alone, scratch, more=1)
        assert alone.item() == threshold.item()
        if top_k:
            values = values.masked_fill(values < values.topk(top_k).values[-1], -torch.inf)
        if top_p == 1:
            assert torch.equal(kept, values > -torch.inf)
            continue
        law = torch.softmax(values / 0.9, 0)
        assert float(law[kept].sum()) >= top_p - 1e-5
        assert float(law[values > threshold].sum()) < top_p + 1e-5
        assert threshold in values
