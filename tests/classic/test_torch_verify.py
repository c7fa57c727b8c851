"""`speculative_decode` on Torch: at most K tokens, the target's law, and the published judge."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import forerun as fr
from forerun.classic.torch_verify import speculative_decode
from forerun.proof.cases import Case, contextual

torch = pytest.importorskip("torch")

TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
DRAFT = torch.tensor([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]])
TOKENS = torch.tensor([1, 2])


def test_signature() -> None:
    parameters = list(inspect.signature(speculative_decode).parameters)
    assert parameters == ["target_probs", "draft_probs", "draft_tokens"]


def test_the_judge_is_satisfied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`check` looks for `speculative_decode` among the names of the module that calls it."""
    import torch_judge

    progress = tmp_path / "progress.json"
    monkeypatch.setattr("torch_judge.progress.PROGRESS_PATH", str(progress))
    torch_judge.check("speculative_decoding")
    assert json.loads(progress.read_text())["speculative_decoding"]["status"] == "solved"


def test_law_is_the_targets(draw_from: Any) -> None:
    def function(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        draw_from(rng)
        arrays = (torch.tensor(x) for x in (target[:-1], draft, tokens))
        return speculative_decode(*arrays)

    cases = [
        Case("one token", 3, contextual(3, 0), contextual(3, 1), 1, 2),
        Case("two tokens", 2, contextual(2, 0), contextual(2, 1), 2, 3),
    ]
    found = fr.certify(function, cases=cases, method="exact")
    assert found.lossless, str(found)
    assert found.bias < 1e-12


def test_torchs_seed_repeats_a_round_and_rounds_differ() -> None:
    def rounds() -> list[list[int]]:
        torch.manual_seed(7)
        return [speculative_decode(TARGET, DRAFT, TOKENS) for _ in range(20)]

    assert rounds() == rounds()
    assert len({tuple(emitted) for emitted in rounds()}) > 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_equal_laws_accept_all_k_and_add_nothing(dtype: str) -> None:
    rows = TARGET.to(getattr(torch, dtype))
    for _ in range(20):
        assert speculative_decode(rows, rows, TOKENS) == [1, 2]


def test_a_row_past_the_draft_is_not_used() -> None:
    rows = torch.cat([TARGET, TARGET[:1]])
    assert speculative_decode(rows, TARGET, TOKENS) == [1, 2]


def test_disjoint_supports_refuse_at_once() -> None:
    target, draft = torch.tensor([[0.0, 0.5, 0.5]] * 2), torch.tensor([[1.0, 0.0, 0.0]] * 2)
    rounds = {tuple(speculative_decode(target, draft, torch.tensor([0, 0]))) for _ in range(50)}
    assert rounds == {(1,), (2,)}


def test_no_draft_emits_nothing() -> None:
    empty = torch.empty((0, 3))
    assert speculative_decode(empty, empty, torch.empty(0, dtype=torch.int64)) == []


def test_lists_of_tokens_narrow_integers_and_gradients_are_welcome() -> None:
    rows = torch.softmax(torch.zeros((2, 3), requires_grad=True), dim=-1)
    listed: Any = [1, 2]
    assert speculative_decode(rows, rows, listed) == [1, 2]
    emitted = speculative_decode(rows, rows, TOKENS.to(torch.int32))
    assert all(type(token) is int for token in emitted)


def test_bad_input() -> None:
    with pytest.raises(fr.InputError, match="do not fit"):
        speculative_decode(TARGET[:1], DRAFT, TOKENS)
    with pytest.raises(fr.InputError, match="draft probability 0"):
        speculative_decode(TARGET, torch.tensor([[0.5, 0.0, 0.5]] * 2), TOKENS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_same_round_on_every_device() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        here = speculative_decode(TARGET, DRAFT, TOKENS)
        torch.manual_seed(seed)
        assert speculative_decode(TARGET.cuda(), DRAFT.cuda(), TOKENS) == here
