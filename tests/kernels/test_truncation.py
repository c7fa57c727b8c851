"""Thresholds keep the tokens that `forerun.sampling.options` keeps, and kernels see no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from interpreting import IN_INTERPRETER  # noqa: E402
from rounds import decided, example, launch  # noqa: E402

from forerun.kernels.scratch import CutScratch  # noqa: E402
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
    scratch = CutScratch.allocate(out.numel(), logits.shape[2], "cpu")
    find_thresholds(logits, *columns, out, scratch, more=1)
    assert not scratch.sums.any()
    assert not scratch.counts.any()
    assert not scratch.finished.any()
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


@pytest.mark.parametrize("most", [pytest.param(1024, marks=pytest.mark.slow), 64])
def test_a_row_of_several_pieces_and_beside_others(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut by the option of the row in every one of its pieces; the same number in another batch,
    and where more tokens are near the threshold than are collected."""
    monkeypatch.setattr("forerun.kernels.truncation.CUT_PIECE", 128)
    monkeypatch.setattr("forerun.kernels.truncation.MOST_COLLECTED", most)
    rng = np.random.default_rng(2)
    options = [
        OPTIONS[3],
        OPTIONS[1],
        Sampling(top_k=150, top_p=0.999),
        Sampling(top_p=1e-6),
        Sampling(top_k=2, top_p=0.999, temperature=1.5),
        Sampling(top_k=20, top_p=0.9),
        Sampling(top_p=0.9, temperature=2.0, min_p=0.05),
        Sampling(top_k=270, temperature=0.7),
        Sampling(top_k=290, min_p=1e-9),
        Sampling(top_k=280),
    ]
    count = len(options)
    logits = torch.tensor(rng.normal(0, 3, (count, 1, 300)), dtype=torch.float32)
    logits[1, 0, :40] = -0.0
    logits[5, 0, 12:] = -torch.inf  # fewer tokens are possible than its top-k
    logits[6] = logits[6].round()
    logits[7, 0, :20] *= 10
    logits[9, 0, 30:] = -torch.inf
    found = thresholds(logits, options, [0] * count)
    for row, sampling in enumerate(options):
        kept = law(sampling, logits[row, 0].numpy(), [], [], Bans()).weights > 0
        found_kept = (logits[row, 0] >= found[row, 0]) & (logits[row, 0] > -torch.inf)
        assert (found_kept.numpy() == kept).all()
        again = logits[row : row + 1].repeat(1, 2, 1)
        assert thresholds(again, [sampling], [1])[0].tolist() == 2 * found[row].tolist()
    assert (logits[3, 0] >= found[3, 0]).sum() == 1


def test_rows_without_a_law_are_not_cut() -> None:
    """Of nothing but -inf, or with a logit that is infinite; a number that is none is not kept."""
    logits = torch.zeros((3, 1, 50))
    logits[0], logits[1, 0, 3], logits[2, 0, 7] = -torch.inf, torch.inf, torch.nan
    found = thresholds(logits, 3 * [Sampling(top_k=2, top_p=0.5)], [0] * 3)
    assert found[:, 0].tolist() == [-torch.inf, -torch.inf, 0.0]


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
