"""Hidden states of committed tokens are those of a plain pass over the text."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from architectures import ATTENTION, RECURRENT
from tiny_models import VOCAB_SIZE, Architecture, largest, random_tokens, random_tree

from forerun.base.errors import InputError, UnsupportedError
from forerun.models import HuggingFaceModel
from forerun.models.base import Inspectable

# Gemma3n carries four vectors per token from layer to layer.
SHOWING = [a for a in ATTENTION if a.strategy == "crop" and a.kind != "gemma3n_text"]
HYBRID = [a for a in RECURRENT if a.kind in ("mamba2", "lfm2", "qwen3_next")]


def quiet(model: Any) -> HuggingFaceModel:
    """A model whose strategy is chosen without its warning."""
    made = HuggingFaceModel(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert made.strategy == "snapshot"
    return made


@torch.inference_mode()
def fresh_states(model: Any, text: list[int], layers: list[int]) -> Any:
    """(N, len(layers) * hidden size) of a text with no cache."""
    output = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    return torch.cat([output.hidden_states[layer][0] for layer in layers], dim=-1)


@pytest.mark.parametrize("architecture", SHOWING, ids=str)
def test_committed_tokens_show_the_states_of_a_plain_pass(architecture: Architecture) -> None:
    """Ragged rows, trees and chains, everything kept or nothing."""
    model = architecture.build()
    language_model = HuggingFaceModel(model)
    assert isinstance(language_model, Inspectable)
    layers = [language_model.num_layers, 0, 1]
    state = language_model.start(2, 64)
    language_model.watch(state, layers)
    generator = random.Random(4)
    texts = [random_tokens(generator, 9), random_tokens(generator, 3)]
    for _ in range(4):
        stored = list(state.lengths)
        pending = [texts[r][stored[r] :] for r in (0, 1)]
        drafts = [random_tokens(generator, size) for size in (6, 5)]
        tree = random_tree(generator, 6)
        paths = [tree.path(generator.randint(-1, 5)), tuple(range(generator.randint(0, 5)))]
        tokens = [pending[r] + drafts[r] for r in (0, 1)]
        language_model.score(state, [0, 1], tokens, [7, 6], [tree.parents, None])
        first = len(pending[0])
        kept = [[*range(first), *(first + i for i in paths[0])], len(pending[1]) + len(paths[1])]
        language_model.commit(state, [0, 1], kept)
        for r in (0, 1):
            texts[r] += [drafts[r][i] for i in paths[r]]
            expected = fresh_states(model, texts[r], layers)[stored[r] :]
            found = language_model.watched(state, r)
            assert found.shape == (len(texts[r]) - stored[r], 3 * language_model.hidden_size)
            assert largest(found - expected) <= architecture.tolerance
            texts[r].append(7 + r)


@pytest.mark.parametrize("architecture", HYBRID, ids=str)
def test_what_a_recurrent_model_replays_is_shown_once(architecture: Architecture) -> None:
    """After a refused guess its state goes back, and what was kept comes in the next pass again."""
    model = architecture.build()
    language_model = quiet(model)
    layers = [language_model.num_layers, 1]
    state = language_model.start(2, 64)
    language_model.watch(state, layers)
    generator = random.Random(4)
    texts, shown, was_behind = [random_tokens(generator, 9), random_tokens(generator, 3)], [0, 0], 0
    for step in range(8):
        pending = [texts[r][state.lengths[r] :] for r in (0, 1)]
        drafts = [random_tokens(generator, size) for size in (4, 3)]
        if step % 3 == 1:  # a score that is never committed shows nothing
            other = random_tokens(generator, 5)
            language_model.score(state, [0], [pending[0] + other], [6])
        tokens = [pending[r] + drafts[r] for r in (0, 1)]
        language_model.score(state, [0, 1], tokens, [5, 4])
        taken = [generator.randint(0, 4), generator.randint(0, 3)]
        language_model.commit(state, [0, 1], [len(pending[r]) + taken[r] for r in (0, 1)])
        for r in (0, 1):
            texts[r] += drafts[r][: taken[r]]
            was_behind += state.lengths[r] < len(texts[r])
            found, expected = (
                language_model.watched(state, r),
                fresh_states(model, texts[r], layers),
            )
            assert len(found) == len(texts[r]) - shown[r]
            assert largest(found - expected[shown[r] :]) <= architecture.tolerance
            assert state.shown[r] == len(texts[r])
            shown[r] = len(texts[r])
            texts[r].append(7 + r)
    assert was_behind >= 4


@pytest.mark.parametrize("architecture", HYBRID[-1:], ids=str)
def test_rows_that_take_over_a_recurrent_state_show_all_of_it(architecture: Architecture) -> None:
    model = architecture.build()
    language_model = quiet(model)
    state = language_model.start(2, 64)
    language_model.watch(state, [1])
    text = [(5 * i) % VOCAB_SIZE for i in range(9)]
    language_model.score(state, [0], [text], [1])
    language_model.commit(state, [0], [9])
    assert language_model.copy_prefix(state, 0, 1, 9) == 9
    language_model.score(state, [1], [[3, 4, 5]], [2])
    language_model.commit(state, [1], [2])  # goes back to the copied state
    expected = fresh_states(model, [*text, 3, 4], [1])
    assert largest(language_model.watched(state, 1) - expected) <= architecture.tolerance
    assert language_model.truncate(state, 1, 10) == 9
    language_model.score(state, [1], [[6, 7]], [1])
    language_model.commit(state, [1], [2])
    expected = fresh_states(model, [*text, 6, 7], [1])
    assert largest(language_model.watched(state, 1) - expected) <= architecture.tolerance
    assert language_model.truncate(state, 1, 4) == 0
    assert state.shown[1] == 0
    language_model.score(state, [1], [[8, 9]], [1])
    language_model.commit(state, [1], [2])
    expected = fresh_states(model, [8, 9], [1])
    assert largest(language_model.watched(state, 1) - expected) <= architecture.tolerance


def test_long_prompts_and_growing_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """States come in pieces, and of tokens that were scored earlier."""
    monkeypatch.setattr("forerun.models.crop.MOST_TOKENS", 8)
    model = Architecture("llama", "crop").build()
    language_model = HuggingFaceModel(model)
    state = language_model.start(1, 64)
    language_model.watch(state, [1])
    text = [(5 * i) % VOCAB_SIZE for i in range(21)]
    language_model.score(state, [0], [[*text, 1, 2]], [1])
    language_model.score(state, [0], [[*text, 1, 3, 4]], [1])
    language_model.score(state, [0], [[*text, 1, 3, 4, 5]], [1])
    language_model.commit(state, [0], [24])
    expected = fresh_states(model, [*text, 1, 3, 4], [1])
    assert largest(language_model.watched(state, 0) - expected) <= 1e-9
    language_model.release(state, 0)
    assert language_model.watched(state, 0) is None


def test_watching_starts_afresh() -> None:
    """Tokens scored before anybody watched are scored again, so that none is missing."""
    model = Architecture("llama", "crop").build()
    language_model = HuggingFaceModel(model)
    state = language_model.start(1, 64)
    language_model.score(state, [0], [[5, 6, 7]], [1])
    language_model.watch(state, [2])
    language_model.score(state, [0], [[5, 6, 7, 8]], [1])
    language_model.commit(state, [0], [4])
    expected = fresh_states(model, [5, 6, 7, 8], [2])
    assert largest(language_model.watched(state, 0) - expected) <= 1e-9


def test_the_last_layer_is_what_the_head_reads() -> None:
    model = Architecture("qwen3", "crop", {"head_dim": 8}).build()
    language_model = HuggingFaceModel(model)
    state = language_model.start(1, 64)
    language_model.watch(state, [language_model.num_layers])
    logits = language_model.score(state, [0], [[5, 6, 7]], [3])
    language_model.commit(state, [0], [3])
    with torch.inference_mode():
        assert largest(model.lm_head(language_model.watched(state, 0)) - logits[0]) <= 1e-9


def test_nothing_is_computed_when_nobody_watches() -> None:
    model = Architecture("llama", "crop").build()
    language_model = HuggingFaceModel(model)
    state = language_model.start(1, 64)
    asked: list[bool] = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: asked.append("output_hidden_states" in kwargs),
        with_kwargs=True,
    )
    language_model.score(state, [0], [[5, 6, 7]], [1])
    assert asked == [False]
    with pytest.raises(InputError, match="No hidden states were kept"):
        language_model.watched(state, 0)


def test_what_cannot_be_watched_is_refused() -> None:
    model = HuggingFaceModel(Architecture("llama", "crop").build())
    state = model.start(1, 8)
    for layers in ([3], [-1], []):
        with pytest.raises(InputError, match=r"0 \.\. 2"):
            model.watch(state, layers)
    several = HuggingFaceModel(next(a for a in ATTENTION if a.kind == "gemma3n_text").build())
    with pytest.raises(UnsupportedError, match=r"one vector per token.*Gemma3n"):
        several.watch(several.start(1, 8), [1])
    without_cache = HuggingFaceModel(Architecture("llama", "crop").build(), strategy="recompute")
    with pytest.raises(UnsupportedError, match=r"LlamaForCausalLM with strategy 'recompute'"):
        without_cache.watch(without_cache.start(1, 8), [1])
