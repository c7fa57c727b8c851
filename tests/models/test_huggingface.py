"""After any sequence of rounds, a row scores like a fresh pass over its text."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from architectures import ATTENTION, RECURRENT
from tiny_models import VOCAB_SIZE, Architecture, Driver, fresh_logits, largest

from forerun.models import HuggingFaceModel


def wrapped(model: Any, strategy: Any = "auto") -> HuggingFaceModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what each strategy warns of is tested elsewhere
        language_model = HuggingFaceModel(model, strategy=strategy)
        assert language_model.strategy in ("crop", "snapshot", "recompute")
    return language_model


@pytest.mark.parametrize("architecture", [*ATTENTION, *RECURRENT], ids=str)
def test_rows_score_like_a_fresh_pass(architecture: Architecture) -> None:
    model = architecture.build()
    language_model = wrapped(model)
    assert language_model.strategy == architecture.strategy
    worst = Driver(language_model, model, num_rows=3).play(num_rounds=5, seed=1)
    print(f"{architecture}: {language_model.strategy}, largest error {worst:.1e}")
    assert worst <= architecture.tolerance


@pytest.mark.parametrize("strategy", ["crop", "snapshot", "recompute"])
def test_every_strategy_on_one_model(strategy: str) -> None:
    model = Architecture("mistral", "crop", {"sliding_window": 5}).build()
    assert Driver(wrapped(model, strategy), model, 3).play(num_rounds=8, seed=2) <= 1e-9


def test_a_wrong_commit_is_noticed() -> None:
    """The comparison above can fail: keep one refused token and the next round is off."""
    model = Architecture("llama", "crop").build()
    driver = Driver(wrapped(model), model, 2)
    for row in (0, 1):
        driver.enter(row, [3, 1, 4, 1, 5])
    assert driver.round([0, 1], [[9, 2], [6, 5]], [2, 1]) <= 1e-9
    driver.state.lengths[1] += 1
    driver.texts[1].append(8)
    assert driver.round([0, 1], [[9], [6]], [1, 1]) > 1e-3


SOME = [ATTENTION[0], ATTENTION[8], RECURRENT[0], RECURRENT[1], RECURRENT[6], RECURRENT[-1]]


@pytest.mark.parametrize("architecture", SOME, ids=str)
def test_a_score_without_commit_did_not_happen(architecture: Architecture) -> None:
    model = architecture.build()
    language_model = wrapped(model)
    driver = Driver(language_model, model, 1)
    driver.enter(0, list(range(2, 14)))
    for draft in ([5, 6], [7, 8, 9]):
        driver.round([0], [draft], [1])
        pending = driver.texts[0][driver.state.lengths[0] :]
        language_model.score(driver.state, [0], [[*pending, 50, 51, 52]], [4])
        language_model.score(driver.state, [0], [[*pending, 50, 53]], [1])
    driver.enter(0, list(range(2, 22)))
    language_model.score(driver.state, [0], [[*driver.texts[0], 50, 51, 52]], [4])
    driver.round([0], [[7, 8]], [2])
    assert driver.worst <= architecture.tolerance


@pytest.mark.parametrize("architecture", SOME, ids=str)
def test_a_draft_grows_token_by_token(architecture: Architecture) -> None:
    """The way a drafter uses a model: earlier tokens of a growing draft are not fed again."""
    model = architecture.build()
    language_model = wrapped(model)
    num_fed: list[int] = []
    model.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: num_fed.append(inputs[0].shape[1])
    )
    state = language_model.start(2, 64)
    texts = [list(range(3, 15)), [9, 4]]
    for accepted in ((0, 3), (2, 1), (3, 0), (0, 0)):
        pending = [texts[r][state.lengths[r] :] for r in (0, 1)]
        draft: list[int] = []
        for _ in range(4):
            num_fed.clear()
            logits = language_model.score(state, [0, 1], [p + draft for p in pending], [1, 1])
            if draft and language_model.strategy != "recompute":
                assert set(num_fed) == {1}
            for r in (0, 1):
                expected = fresh_logits(model, texts[r] + draft)[-1]
                assert largest(logits[r, 0] - expected) <= architecture.tolerance
            draft.append(int(logits[0, 0].argmax()))
        kept = [len(p) + n for p, n in zip(pending, accepted, strict=True)]
        language_model.commit(state, [0, 1], kept)
        texts = [texts[r] + draft[: accepted[r]] + [11 + r] for r in (0, 1)]
        if language_model.strategy != "recompute":
            assert state.lengths == [len(text) - 1 for text in texts]


@pytest.mark.parametrize("architecture", [RECURRENT[0], RECURRENT[1], ATTENTION[0]], ids=str)
def test_keeping_less_than_the_pending_text(architecture: Architecture) -> None:
    """The save after the pending tokens is of no use then; an earlier one must be."""
    model = architecture.build()
    language_model = wrapped(model)
    driver = Driver(language_model, model, 1)
    text = list(range(3, 15))
    driver.enter(0, text)
    language_model.score(driver.state, [0], [[*text, 40, 41]], [3])
    language_model.commit(driver.state, [0], [4])
    driver.texts[0] = [*text[:4], 20]
    assert driver.round([0], [[21, 22]], [1]) <= 1e-4
    assert driver.round([0], [[23]], [0]) <= 1e-4


def test_replayed_text_stays_short_when_every_draft_is_refused() -> None:
    model = RECURRENT[1].build()
    driver = Driver(wrapped(model), model, 1)
    driver.enter(0, list(range(40)))
    for _ in range(30):
        driver.round([0], [[1, 2]], [0])
        assert len(driver.texts[0]) - driver.state.lengths[0] <= 10
    assert driver.worst <= 1e-4


@pytest.mark.parametrize("strategy", ["crop", "snapshot", "recompute"])
def test_the_same_tokens_again_are_new_tokens(strategy: str) -> None:
    """Only what was scored since the last commit may be built on."""
    model = Architecture("llama", "crop").build()
    language_model = wrapped(model, strategy)
    state = language_model.start(1, 32)
    for copies in (1, 2, 3):
        tokens = [7] * 4 * copies if strategy == "recompute" else [7] * 4
        logits = language_model.score(state, [0], [tokens], [1])
        assert largest(logits[0, 0] - fresh_logits(model, [7] * 4 * copies)[-1]) <= 1e-9
        language_model.commit(state, [0], [len(tokens)])
    language_model.release(state, 0)
    language_model.score(state, [0], [[1, 2, 3]], [1])
    language_model.commit(state, [0], [3])
    language_model.score(state, [0], [[1, 2, 3, 7, 7, 7][state.lengths[0] :]], [1])
    language_model.release(state, 0)
    logits = language_model.score(state, [0], [[7] * 5], [1])
    assert largest(logits[0, 0] - fresh_logits(model, [7] * 5)[-1]) <= 1e-9


def test_stored_keys_survive_growth() -> None:
    model = Architecture("mistral", "crop", {"sliding_window": 90}).build()
    driver = Driver(wrapped(model), model, 2)
    driver.enter(0, [(5 * i) % VOCAB_SIZE for i in range(60)])
    driver.enter(1, [(3 * i) % VOCAB_SIZE for i in range(50)])
    for draft in ([1, 2, 3], [4, 5, 6], [7, 8, 9, 10] * 4, [11] * 12, [12] * 12, [13] * 3):
        driver.round([0, 1], [draft, draft[1:]], [len(draft), len(draft) // 2])
    assert driver.worst <= 1e-9


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text"])
def test_long_prompts_are_scored_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.models.crop.MOST_TOKENS", 8)
    options = {"sliding_window": 5, "head_dim": 8} if kind != "llama" else {}
    model = Architecture(kind, "crop", {**options, "num_hidden_layers": 6}).build()
    driver = Driver(wrapped(model), model, 3)
    for row, length in enumerate((30, 8, 3)):
        driver.enter(row, [(5 * i + row) % VOCAB_SIZE for i in range(length)])
    drafts = [[1] * 11, [2, 3], []]  # the first row's logits span two pieces
    assert driver.round([0, 1, 2], drafts, [7, 0, 0]) <= 1e-9
    assert driver.round([0, 2], [[4], [5] * 9], [1, 4]) <= 1e-9


def test_only_needed_positions_are_projected() -> None:
    """Four prompts of forty tokens with one logit each must not project a hundred and sixty."""
    model = Architecture("llama", "crop").build()
    language_model = wrapped(model)
    projected: list[int] = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: projected.append(out.shape[1]))
    state = language_model.start(4, 64)
    prompts = [[5] * length for length in (40, 37, 33, 30)]
    language_model.score(state, [0, 1, 2, 3], prompts, [1, 1, 1, 1])
    assert sum(projected) <= 4


def test_rows_grow_only_as_needed_and_commit_moves_nothing() -> None:
    model = Architecture("llama", "crop").build()
    language_model = wrapped(model, "crop")
    state = language_model.start(2, capacity=100_000)
    language_model.score(state, [0, 1], [[1] * 100, [2] * 90], [1, 1])
    language_model.commit(state, [0, 1], [100, 90])
    layer = state._cache.layers[0]  # type: ignore[union-attr]
    keys = layer.keys
    assert keys.shape[2] < 1000
    for _ in range(20):
        language_model.score(state, [0, 1], [[1, 2, 3], [4, 5]], [3, 2])
        language_model.commit(state, [0, 1], [1, 1])
    assert layer.keys is keys
    assert state.lengths == [120, 110]


def test_capacity_is_not_exceeded_round_by_round() -> None:
    """Padding may reach past the capacity; that must not reallocate in every round."""
    model = Architecture("llama", "crop").build()
    language_model = wrapped(model, "crop")
    state = language_model.start(1, capacity=70)
    sizes = set()
    for _ in range(70):
        language_model.score(state, [0], [[1]], [1])
        language_model.commit(state, [0], [1])
        sizes.add(state._cache.layers[0].keys.shape[2])  # type: ignore[union-attr]
    assert sizes == {64, 128}


def test_permuted_and_scattered_rows() -> None:
    model = Architecture("gemma3_text", "crop", {"sliding_window": 5, "head_dim": 8}).build()
    driver = Driver(wrapped(model), model, 5)
    for row in range(5):
        driver.enter(row, [(3 * i + row) % VOCAB_SIZE for i in range(4 + 2 * row)])
    driver.round([4, 0, 2], [[1], [2, 3], []], [1, 1, 0])
    driver.round([3, 1], [[1, 2], [2, 3]], [0, 2])
    driver.round([0, 2, 4], [[6], [7], [8]], [1, 1, 1])
    driver.round([1, 2, 3], [[6, 9], [7], [8]], [1, 1, 1])
    assert driver.worst <= 1e-9


def test_low_precision_is_not_mistaken_for_disagreement() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        model = Architecture("llama", "crop", {"num_hidden_layers": 8}, dtype=dtype).build()
        assert wrapped(model).strategy == "crop"
