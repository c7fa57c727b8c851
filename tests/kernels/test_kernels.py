"""The kernels decide what the rules decide, seed by seed, in Triton's interpreter on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import array_api_compat as compat  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from interpreting import IN_INTERPRETER  # noqa: E402
from rounds import decided, example, launch, rounded, rows_of  # noqa: E402

from forerun.kernels import decide  # noqa: E402
from forerun.kernels.decide import LawPiece, RacePiece  # noqa: E402
from forerun.kernels.scratch import FAR, LOWEST_KEY, Outcome, Scratch  # noqa: E402
from forerun.kernels.triton.arithmetic import exponential  # noqa: E402
from forerun.kernels.triton.drawing import pick  # noqa: E402
from forerun.noise import race as noise  # noqa: E402
from forerun.noise.addresses import Purpose  # noqa: E402
from forerun.trees.tree import Tree  # noqa: E402

pytestmark = IN_INTERPRETER
RACE, SIFT = RacePiece(2, 1, 2), RacePiece(2, 2, 0, 1)
XP = compat.array_namespace(np.empty(0))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so small that short rows are shared by several programs too."""
    monkeypatch.setattr(decide, "law_piece", lambda *_: LawPiece(1, 2))
    monkeypatch.setattr(decide, "AT_ONCE", 2000)  # rows after a refusal are skipped in some tests
    monkeypatch.setattr(decide, "race_piece", lambda *_: SIFT)


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_chains_end_as_the_rule_says(rule: str) -> None:
    """Rows of three temperatures and ragged lengths, a vocabulary that fills no block."""
    made = example(1, 3, 2, 600, temperatures=(0.7, 0.0, 1.0))
    out = launch(rule, made.round(torch.float32, "cpu", law=rule != "match"))
    assert decided(out) == made.reference(rule)
    assert out.reached.tolist() == out.accepted.tolist()


@pytest.mark.parametrize("piece", [RACE, SIFT])
def test_rows_that_say_little(piece: RacePiece, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flat row, in which all tokens of a block may win; one of two tokens; one at temperature 0.
    Guesses are right or wrong.  In one launch and in two."""
    monkeypatch.setattr(decide, "race_piece", lambda *_: piece)
    made = example(1, 4, 1, 300, temperatures=(0.7, 0.7, 0.7, 0.0), ragged=False)
    made.target[0] = 1.25
    made.target[1, 0, 2:] = float("-inf")
    tokens = made.tokens.clone()
    tokens[:3, 0] = torch.tensor([5, made.reference("match")[1][1], 299])
    made = replace(made, tokens=tokens)
    assert decided(launch("match", made.round(torch.float32, "cpu"))) == made.reference("match")


@pytest.mark.parametrize("piece", [RACE, SIFT])
def test_nan_is_the_fault_of_its_row(piece: RacePiece, monkeypatch: pytest.MonkeyPatch) -> None:
    """At temperature 1 and 0; the row before and its guess are in order."""
    monkeypatch.setattr(decide, "race_piece", lambda *_: piece)
    made = example(2, 2, 1, 300, temperatures=(1.0, 0.0), ragged=False)
    made = replace(made, tokens=torch.tensor(made.reference("match")[1])[:, None])
    made.target[:, 1, 290] = float("nan")
    out = launch("match", made.round(torch.float32, "cpu"))
    assert out.fault.tolist() == [1 + 16 * 1] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_read_as_it_is(dtype: torch.dtype) -> None:
    """The reference judges the rounded logits."""
    made = rounded(example(3, 2, 1, 300, temperatures=(0.8, 0.0), ragged=False), dtype)
    rule = {torch.bfloat16: "match", torch.float16: "ratio"}[dtype]
    out = launch(rule, made.round(dtype, "cpu", law=rule != "match"))
    assert decided(out) == made.reference(rule)


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_point_drafts(rule: str) -> None:
    made = example(4, 2, 2, 300, temperatures=(1.0, 0.5), near=0.3)
    out = launch(rule, made.round(torch.float32, "cpu", point=True, law=True))
    assert decided(out) == made.reference(rule, point=True)


def test_block_keeps_part_of_a_draft_by_its_second_coins() -> None:
    """Rows, out of 100, that keep two of three guesses; for the first of them p - q, not scaled
    by the survival, would draw another token."""
    made = example(14, 100, 3, 20, temperatures=(1.0,), ragged=False, near=1.5)
    accepted, extra = made.reference("block")
    owed = (torch.softmax(made.target[:, 2], -1) - torch.softmax(made.draft[:, 2], -1)).numpy()
    key, positions = noise.seed_key(XP, made.seeds, None), np.array(made.positions)
    unit = noise.coin(XP, key, positions, [0], Purpose.RESIDUAL)[:, 0]
    unscaled = noise.draw(XP, np.maximum(owed, 0.0), unit)
    some = [row for row in range(100) if accepted[row] == 2]
    some = sorted(some, key=lambda row: extra[row] == unscaled[row])[:2]
    assert extra[some[0]] != unscaled[some[0]]
    out = launch("block", rows_of(made, some).round(torch.float32, "cpu", law=True))
    assert decided(out) == ([2] * 2, [extra[row] for row in some])


def test_match_on_trees() -> None:
    """Two children: the second is right, or both are, or the second does not count."""
    tree = Tree((-1, -1, 1))
    made = example(5, 3, 3, 300, temperatures=(1.0,), ragged=False, tree=tree)
    first = made.reference("match")[1]  # no guess is right by itself
    tokens = made.tokens.clone()
    tokens[:, 1] = torch.tensor(first)
    tokens[1, 0] = first[1]
    made = replace(made, tokens=tokens, lengths=[3, 2, 1])
    out = launch("match", made.round(torch.float32, "cpu"))
    assert decided(out) == made.reference("match")
    assert out.reached.tolist() == [2, 1, 0]


def test_neither_batch_nor_k_nor_what_was_drafted_moves_a_sample() -> None:
    """The token at a position is that of a round without guesses, at the bits of its row alone."""
    made = example(40, 2, 1, 300, temperatures=(0.9,), ragged=False, near=0.2)
    accepted, extra = decided(launch("match", made.round(torch.float32, "cpu")))
    assert len(set(accepted)) > 1
    for row, (count, token) in enumerate(zip(accepted, extra, strict=True)):
        alone = replace(
            made,
            target=made.target[row : row + 1, count : count + 1].contiguous(),
            tokens=made.tokens[:1, :0],
            lengths=[0],
            temperatures=[0.9],
            seeds=[made.seeds[row]],
            positions=[made.positions[row] + count],
        )
        assert decided(launch("match", alone.round(torch.float32, "cpu"))) == ([0], [token])


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_one_scratch_serves_launch_after_launch(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are left as they were found, where a guess is refused and rows are skipped too.  The
    vocabulary does not fill a segment."""
    monkeypatch.setattr(decide, "AT_ONCE", 0)
    made = example(7, 1, 1, 7, temperatures=(1.3,))
    memory = Scratch.allocate(1, 2, 7, "cpu")
    on_device = made.round(torch.float32, "cpu", law=rule != "match")
    first, second = (decided(launch(rule, on_device, memory)) for _ in range(2))
    assert first == second == made.reference(rule)
    assert first[0] == [0] or rule != "match"
    assert not memory.counts.any()
    assert (memory.limits == FAR).all()
    assert not memory.finished.any()
    assert (memory.keys == LOWEST_KEY).all()


@pytest.mark.parametrize("length", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_ratio_of_few_rows(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are asked for before it is known that they count.  Some keep all of their guesses, some
    a few or none, some are greedy; twice on one scratch."""
    monkeypatch.setattr(decide, "AT_ONCE", 2**23)
    monkeypatch.setattr(decide, "FEW", 0)
    made = example(6, 8, length, 600, temperatures=(1.0, 0.7, 0.0, 1.0), near=0.4)
    memory = Scratch.allocate(8, length + 1, 600, "cpu")
    expected = made.reference("ratio")
    ends = zip(expected[0], made.lengths, strict=True)
    assert {(count > 0) + (count == whole) for count, whole in ends} == {0, 1, 2}
    for _ in range(2):
        on_device = made.round(torch.float32, "cpu", law=True)
        assert decided(launch("ratio", on_device, memory)) == expected
    assert not memory.finished.any()
    assert not memory.counts.any()


@pytest.mark.parametrize("piece", [RACE, SIFT])
def test_a_token_whose_bound_is_tight_is_timed(
    piece: RacePiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Races, out of 1,000, in which the fastest tokens of the blocks, which are timed first, nearly
    exclude the winner: two whose bound by the minimum of the block is earlier by a factor of less
    than 3, and two that win by less than 2%."""
    monkeypatch.setattr(decide, "race_piece", lambda *_: piece)
    count, size = 1_000, 512
    weights = np.exp(np.random.default_rng(9).normal(0, 1.5, size))
    key = noise.seed_key(XP, [1], None)
    positions, tokens = np.arange(count), np.arange(size)
    times = noise.exponentials(
        XP, np.repeat(key, count, axis=2), positions, np.tile(tokens, (count, 1))
    )
    times /= weights
    winner, rows = times.argmin(axis=1), np.arange(count)
    minimum, lane = noise.block_minima(XP, np.repeat(key, count, axis=2), positions, size)
    bounds = np.repeat(minimum, 256, axis=1) / weights
    known = np.min([times[rows, lane[:, block] + 256 * block] for block in (0, 1)], axis=0)
    is_hidden = known > times[rows, winner]
    margin = np.where(is_hidden, bounds[rows, winner] / known, 0.0)
    lead = np.where(is_hidden, times[rows, winner] / known, 0.0)
    tightest = np.concatenate([np.argsort(-margin)[:2], np.argsort(-lead)[:2]])
    assert (margin[tightest[:2]] > 0.35).all()
    assert (lead[tightest[2:]] > 0.98).all()
    made = example(9, 4, 0, size, temperatures=(1.0,))
    made = replace(
        made,
        target=torch.tensor(np.log(weights), dtype=torch.float32).expand(4, 1, size).contiguous(),
        seeds=[1] * 4,
        positions=positions[tightest].tolist(),
    )
    out = launch("match", made.round(torch.float32, "cpu"))
    assert decided(out)[1] == winner[tightest].tolist()


def test_greedy_ties_go_to_the_lowest_id_of_all_tiles() -> None:
    """Three tiles; -0 and 0 are equal."""
    made = example(12, 1, 0, 1100, temperatures=(0.0,))
    made.target.fill_(-1.0)
    made.target[0, 0, [600, 1050]] = torch.tensor([-0.0, 0.0])
    assert decided(launch("match", made.round(torch.float32, "cpu")))[1] == [600]


@triton.jit
def _exponentials(words: Any, out: Any, SIZE: tl.constexpr) -> None:
    index = tl.arange(0, SIZE)
    tl.store(out + index, exponential(tl.load(words + index).to(tl.uint32)))


def test_exponentials_are_precise_at_both_ends() -> None:
    """Within 3e-7 of -log(1 - u), relative."""
    edges = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]
    spread = np.random.default_rng(3).integers(0, 2**32, 503)
    words = np.array([*edges, *spread], dtype=np.int64)
    out = torch.zeros(512)
    _exponentials[(1,)](torch.tensor(words), out, SIZE=512)
    expected = -np.log1p(-(words + 0.5) / 2**32)
    assert (np.abs(out.numpy() - expected) <= 3e-7 * expected).all()


@triton.jit
def _picks(weights: Any, aims: Any, out: Any, SIZE: tl.constexpr) -> None:
    program = tl.program_id(0)
    chosen, before = pick(tl.load(weights + tl.arange(0, SIZE)), tl.load(aims + program), SIZE)
    tl.store(out + 2 * program, chosen)
    tl.store(out + 2 * program + 1, before)


def test_no_aim_picks_a_weight_of_zero() -> None:
    """An aim that rounding put at the total, or past it, picks the last weight there is."""
    weights = torch.tensor([0.0, 2.0, 0.0, 3.0, 0.0, 1.0, 0.0, 0.0])
    aims = torch.tensor([0.0, 1.9, 2.0, 4.9, 5.0, 6.0, 6.5], dtype=torch.float64)
    out = torch.zeros((len(aims), 2), dtype=torch.float64)
    _picks[(len(aims),)](weights, aims, out, SIZE=8)
    assert out[:, 0].tolist() == [1, 1, 3, 3, 5, 5, 5]
    assert out[:, 1].tolist() == [0, 0, 2, 2, 5, 5, 5]


@pytest.mark.parametrize("purpose", [Purpose.TARGET, Purpose.DRAFT])
def test_samples_are_those_of_the_host(purpose: Purpose) -> None:
    """Races as plain sampling does, draws as `forerun.drafters.model` does, at the same address."""
    made = example(8, 2, 0, 600, temperatures=(1.0, 0.6))
    on_device = made.round(torch.float32, "cpu")
    memory, out = Scratch.allocate(2, 1, 600, "cpu"), Outcome.allocate(2, "cpu")
    slot = 6
    decide.sample(
        on_device.logits[:, 0],
        on_device.temperature,
        on_device.seeds,
        on_device.positions,
        purpose,
        slot,
        memory,
        out,
    )
    heat = np.array(made.temperatures)[:, None]
    weights = np.exp(made.target[:, 0].double().numpy() / heat)
    key, positions = noise.seed_key(XP, made.seeds, None), np.array(made.positions)
    if purpose is Purpose.TARGET:
        expected = noise.race(XP, weights, key, positions)
    else:
        unit = noise.coin(XP, key, positions, [slot], purpose)[:, 0]
        expected = noise.draw(XP, weights, unit)
    assert out.extra.tolist() == expected.tolist()
    assert not out.fault.any()
