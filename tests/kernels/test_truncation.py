"""Thresholds keep the tokens that `forerun.sampling.options` keeps, and kernels see no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from interpreting import IN_INTERPRETER  # noqa: E402
from rounds import decided, example, launch  # noqa: E402

from forerun.kernels.truncation import find_thresholds  # noqa: E402
from forerun.sampling.options import Bans, Sampling, law  # noqa: E402

pytestmark = IN_INTERPRETER
OPTIONS = [
    Sampling(top_k=5),
    Sampling(top_p=0.6, temperature=0.8),
    Sampling(min_p=0.1, temperature=1.2),
    Sampling(top_k=40, top_p=0.9, min_p=0.02),
    Sampling(),
    Sampling(top_k=3, temperature=0.0),
]


def thresholds(logits: torch.Tensor, options: list[Sampling], lengths: list[int]) -> torch.Tensor:
    columns = (
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor([one.temperature for one in options], dtype=torch.float32),
        torch.tensor([one.top_k or 0 for one in options], dtype=torch.int32),
        torch.tensor([one.top_p for one in options], dtype=torch.float32),
        torch.tensor([one.min_p for one in options], dtype=torch.float32),
    )
    out = torch.full(logits.shape[:2], -7.0)
    find_thresholds(logits, *columns, out, more=1)
    return out


def test_the_tokens_kept_are_those_of_sampling() -> None:
    """Logits in steps of 1/4, so that there are ties at every edge."""
    rng = np.random.default_rng(1)
    logits = torch.tensor(np.round(4 * rng.normal(0, 2, (len(OPTIONS), 1, 300))) / 4)
    logits = logits.to(torch.float32)
    logits[:, :, 17] = -torch.inf
    found = thresholds(logits, OPTIONS, [0] * len(OPTIONS))
    for row, sampling in enumerate(OPTIONS):
        kept = law(sampling, logits[row, 0].numpy(), [], [], Bans()).weights > 0
        if sampling.temperature == 0 or sampling == Sampling():
            assert found[row, 0] == -torch.inf
        else:
            assert ((logits[row, 0] >= found[row, 0]).numpy() == kept).all()
            assert 1 < kept.sum() < 200


def test_rows_that_do_not_count_are_not_read() -> None:
    logits = torch.full((1, 2, 10), torch.nan)
    logits[0, 0] = torch.arange(10.0)
    assert thresholds(logits, [Sampling(top_k=2)], [0]).tolist() == [[8.0, -torch.inf]]


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_rules_judge_the_cut_laws(rule: str) -> None:
    """As the reference does with -inf in place of what is cut; drafts come from the cut law."""
    made = example(31, 2, 1, 300, temperatures=(1.0,), ragged=False, near=0.3)
    cut, draft_cut = torch.full((2, 2), 5.0), torch.full((2, 1), 4.0)
    tokens = torch.stack([made.draft[row].argmax(dim=-1) for row in range(2)])
    made = replace(made, tokens=tokens)
    on_device = replace(
        made.round(torch.float32, "cpu", law=rule != "match"),
        thresholds=cut,
        draft_thresholds=draft_cut,
    )
    masked = replace(
        made,
        target=made.target.masked_fill(made.target < 5.0, -torch.inf),
        draft=made.draft.masked_fill(made.draft < 4.0, -torch.inf),
    )
    expected = masked.reference(rule)
    assert expected != made.reference(rule)
    assert decided(launch(rule, on_device)) == expected
