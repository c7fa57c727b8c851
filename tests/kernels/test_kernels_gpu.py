"""The kernels on a CUDA device, at the size of a real vocabulary."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rounds import Example, decided, example, launch, rounded, rows_of  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.kernels.decide_trial import LAUNCHES  # noqa: E402
from forerun.kernels.scratch import Outcome, Scratch  # noqa: E402
from forerun.trees.tree import Tree  # noqa: E402
from forerun.verification import kernels_decide  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="needs compiled kernels"),
]
VOCAB_SIZE, BATCH, LENGTH = 128256, 64, 5
RULES = ("match", "ratio", "block")
TREE = Tree.of_branching((3, 2))


@pytest.fixture(scope="module")
def made() -> Example:
    return example(21, BATCH, LENGTH, VOCAB_SIZE, near=0.5)


def differing(found: tuple[list[int], list[int]], expected: tuple[list[int], list[int]]) -> int:
    return sum(a != b for a, b in zip(zip(*found), zip(*expected), strict=True))  # noqa: B905


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_rounds_end_as_the_rule_says(made: Example, rule: str, dtype: torch.dtype) -> None:
    """In float64 on the host.

    A race flips where two times are within 1e-6 of one another, a draw where its aim is that near
    to an edge, which has odds of about 1e-3 here.  Two of 64 may differ; a correct kernel has more
    with probability below 1e-4.
    """
    made = rounded(made, dtype)
    out = launch(rule, made.round(dtype, "cuda", law=rule != "match"))
    assert differing(decided(out), made.reference(rule)) <= 2


def test_trees_end_as_the_rule_says() -> None:
    made = example(22, 8, len(TREE), VOCAB_SIZE, ragged=False, near=0.2, tree=TREE)
    first = made.reference("match")[1]
    tokens = made.tokens.clone()
    tokens[:, 2] = torch.tensor(first)
    made = replace(made, tokens=tokens)
    out = launch("match", made.round(torch.float32, "cuda"))
    assert differing(decided(out), made.reference("match")) <= 1


@pytest.mark.parametrize("batch", [8, BATCH])
@pytest.mark.parametrize("rule", RULES)
def test_a_sequence_alone_ends_as_in_a_batch(made: Example, rule: str, batch: int) -> None:
    """To the bit, so no outcome differs, in ten batches and one by one."""
    on_device = rows_of(made, range(batch)).round(torch.float32, "cuda", law=rule != "match")
    together = decided(launch(rule, on_device))
    for _ in range(9):
        assert decided(launch(rule, on_device)) == together
    for row in range(0, batch, 3):
        one = rows_of(made, range(row, row + 1)).round(torch.float32, "cuda", law=rule != "match")
        expected = [together[0][row]], [together[1][row]]
        assert decided(launch(rule, one)) == expected


@pytest.mark.parametrize("batch", [8, BATCH])
def test_sums_are_the_same_bits_in_every_batch(made: Example, batch: int) -> None:
    """Maxima and sums of all segments, and the normaliser of every row that is read."""
    rows = rows_of(made, range(batch))
    memory = Scratch.allocate(batch, LENGTH + 1, VOCAB_SIZE, "cuda")
    launch("block", rows.round(torch.float32, "cuda", law=True), memory)
    for row in range(0, batch, 5):
        alone = Scratch.allocate(1, LENGTH + 1, VOCAB_SIZE, "cuda")
        launch("block", rows_of(made, [row]).round(torch.float32, "cuda", law=True), alone)
        num_slots, num_segments = made.lengths[row] + 1, -(-VOCAB_SIZE // 512)
        assert memory.laws is not None
        assert alone.laws is not None
        for name, width in (("maxima", num_segments), ("sums", num_segments), ("laws", 2)):
            together, single = (getattr(laws, name) for laws in (memory.laws, alone.laws))
            assert torch.equal(together[row, :num_slots, :width], single[0, :num_slots, :width])


@pytest.mark.parametrize("rule", RULES)
def test_a_captured_graph_decides_the_same(made: Example, rule: str) -> None:
    """Replayed on other logits and positions than it was captured with."""
    law = rule != "match"
    first, second = (
        rows_of(made, some).round(torch.float32, "cuda", law=law)
        for some in (range(8), range(8, 16))
    )
    expected = decided(launch(rule, second))
    scratch = Scratch.allocate(8, LENGTH + 1, VOCAB_SIZE, "cuda")
    launch(rule, first, scratch)  # compiled before the capture
    out = Outcome.allocate(8, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        LAUNCHES[rule](first, scratch, out)
    for name in (
        "logits",
        "draft_logits",
        "tokens",
        "lengths",
        "temperature",
        "seeds",
        "positions",
    ):
        if getattr(first, name) is not None:
            getattr(first, name).copy_(getattr(second, name))
    for _ in range(3):
        out.extra.fill_(-7)
        graph.replay()
        assert decided(out) == expected


@pytest.mark.parametrize("rule", RULES)
def test_verify_takes_the_kernels(
    made: Example, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = fr.Draft.sampled(made.tokens.cuda(), logits=made.draft.cuda())
    options: dict[str, Any] = {"target_logits": made.target.cuda(), "rule": rule, "seed": 3}
    assert kernels_decide(draft, options["target_logits"], fr.rules.get(rule), "read")
    fast = fr.verify(draft, **options)
    monkeypatch.setenv("FORERUN_KERNELS", "0")
    slow = fr.verify(draft, **options)
    assert sum(a != b for a, b in zip(fast.tokens(), slow.tokens(), strict=True)) <= 2


@pytest.mark.parametrize("rule", RULES)
def test_nan_is_reported(made: Example, rule: str) -> None:
    target = made.target[:4].clone()
    target[2, 0, 100_000] = float("nan")
    draft = fr.Draft.sampled(made.tokens[:4].cuda(), logits=made.draft[:4].cuda())
    with pytest.raises(fr.InputError, match="row 2, slot 0"):
        fr.verify(draft, target_logits=target.cuda(), rule=rule, seed=3)
