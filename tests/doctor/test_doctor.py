"""The doctor tells float arithmetic from bugs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import forerun as fr
from forerun.doctor.diagnosis import diagnose
from forerun.doctor.rounding import distance, rounding
from forerun.models import HuggingFaceModel

PROMPT = [7, 8, 9]
LAWS = [fr.Sampling(temperature=0.0), fr.Sampling(temperature=0.8, top_p=0.9, seed=4)]


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).float().eval()


@pytest.mark.parametrize("sampling", LAWS)
def test_equal_outputs_need_no_doctor(model: LlamaForCausalLM, sampling: fr.Sampling) -> None:
    tokens = fr.generate(model, PROMPT, drafter=None, sampling=sampling, max_new_tokens=12).tokens
    assert diagnose(model, PROMPT, tokens, list(tokens), sampling=sampling) is None


@pytest.mark.parametrize("sampling", LAWS)
def test_a_wrong_token_is_a_bug(model: LlamaForCausalLM, sampling: fr.Sampling) -> None:
    tokens = fr.generate(model, PROMPT, drafter=None, sampling=sampling, max_new_tokens=12).tokens
    wrong = [*tokens[:7], (tokens[7] + 1) % 97, *tokens[8:]]
    found = diagnose(model, PROMPT, tokens, wrong, sampling=sampling)
    assert found is not None
    assert found.index == 7
    assert found.tokens == (tokens[7], wrong[7])
    assert not found.is_near_tie
    assert str(found).startswith("bug: at output token 7")


def test_an_output_that_ends_too_soon_is_a_bug(model: LlamaForCausalLM) -> None:
    tokens = fr.generate(model, PROMPT, drafter=None, max_new_tokens=12).tokens
    found = diagnose(model, PROMPT, tokens, tokens[:5])
    assert found is not None
    assert found.tokens == (tokens[5], None)
    assert not found.is_near_tie


def test_twin_tokens_are_a_near_tie(model: LlamaForCausalLM) -> None:
    """Two tokens whose rows of the head differ in the last bits cannot be told apart."""
    first = fr.generate(model, PROMPT, drafter=None, max_new_tokens=1).tokens[0]
    twin = (first + 1) % 97
    with torch.no_grad():
        nudge = torch.from_numpy(np.random.default_rng(0).normal(size=64)).float()
        model.lm_head.weight[twin] = model.lm_head.weight[first] + 1e-8 * nudge
    found = diagnose(model, PROMPT, [first], [twin])
    assert found is not None
    assert found.is_near_tie
    assert "near-tie" in str(found)


def roll(logits: Any) -> Any:
    return torch.roll(logits, 1, dims=-1)


def scale(logits: Any) -> Any:
    return 1.02 * logits


class Tampered(HuggingFaceModel):
    """Changes the logits of passes with longer drafts."""

    def __init__(self, model: Any, change: Any, longest: int = 3) -> None:
        super().__init__(model)
        self.change, self.longest = change, longest

    def score(
        self, state: Any, rows: Any, tokens: Any, num_logits: Any, parents: Any = None
    ) -> Any:
        logits = super().score(state, rows, tokens, num_logits, parents)
        return self.change(logits) if max(num_logits) > self.longest else logits


class Misplaced(HuggingFaceModel):
    """Forgets one stored token before a longer draft, so that its positions are off by one."""

    def score(
        self, state: Any, rows: Any, tokens: Any, num_logits: Any, parents: Any = None
    ) -> Any:
        before = list(state.lengths)
        if max(num_logits) > 3:
            for row in rows:
                state.lengths[row] = max(0, state.lengths[row] - 1)
        logits = super().score(state, rows, tokens, num_logits, parents)
        state.lengths[:] = before
        return logits


class Leaking(HuggingFaceModel):
    """A row's logits are those of the row before it."""

    def score(
        self, state: Any, rows: Any, tokens: Any, num_logits: Any, parents: Any = None
    ) -> Any:
        logits = super().score(state, rows, tokens, num_logits, parents)
        return torch.roll(logits, 1, dims=0)


class Uprooted(HuggingFaceModel):
    """Scores the nodes of a tree as if they were a chain."""

    def score(
        self, state: Any, rows: Any, tokens: Any, num_logits: Any, parents: Any = None
    ) -> Any:
        return super().score(state, rows, tokens, num_logits)


class Table(fr.models.TableModel):
    """A model that tells nothing about itself, rolled for longer drafts."""

    def score(
        self, state: Any, rows: Any, tokens: Any, num_logits: Any, parents: Any = None
    ) -> Any:
        logits = super().score(state, rows, tokens, num_logits, parents)
        return np.roll(logits, 1, axis=-1) if max(num_logits) > 3 else logits


def differing(target: Any, sampling: fr.Sampling, index: int = 5) -> Any:
    """Two outputs that part at `index`: the true token, and the one after it."""
    tokens = fr.generate(
        target, PROMPT, drafter=None, sampling=sampling, max_new_tokens=index + 8
    ).tokens
    return diagnose(
        target,
        PROMPT,
        tokens,
        [*tokens[:index], (tokens[index] + 1) % target.vocab_size, *tokens[index + 1 :]],
        sampling=sampling,
    )


@pytest.mark.parametrize("sampling", LAWS)
def test_a_rolled_pass_is_a_bug_although_it_reproduces_both_tokens(
    model: LlamaForCausalLM, sampling: fr.Sampling
) -> None:
    target = Tampered(model, roll)
    plain = fr.generate(target, PROMPT, drafter=None, sampling=sampling, max_new_tokens=30).tokens
    drafter = fr.drafters.Model(model)
    shared = {"sampling": sampling, "drafter": drafter, "draft_length": 5}
    guessed = fr.generate(target, PROMPT, max_new_tokens=30, **shared).tokens
    found = diagnose(target, PROMPT, plain, guessed, sampling=sampling)
    assert found is not None
    assert not found.is_near_tie
    assert found.error > 1 > 1e-2 > found.rounding.bound
    assert "draft tokens" in str(found)
    assert "differs from a fresh pass by" in str(found)
    assert "float32 explains at most" in str(found)
    if sampling.temperature == 0:
        assert found.reproduced


@pytest.mark.parametrize(
    ("make", "worst"),
    [
        (lambda model: Tampered(model, scale), "draft tokens"),
        (lambda model: Tampered(model, scale, longest=10), "16 draft tokens"),
        (Misplaced, "draft tokens"),
        (Leaking, "beside another text"),
        (Uprooted, "tree"),
    ],
)
def test_passes_that_rounding_does_not_explain_are_named(
    model: LlamaForCausalLM, make: Any, worst: str
) -> None:
    found = differing(make(model), LAWS[0])
    assert not found.is_explained
    assert not found.is_near_tie
    assert worst in found.worst_pass


def test_a_model_that_tells_nothing_is_held_to_the_same() -> None:
    found = differing(Table.random(97, 1, seed=0), LAWS[0])
    assert not found.is_explained
    sound = differing(fr.models.TableModel.random(97, 1, seed=0), LAWS[0])
    assert sound.is_explained
    assert sound.error == 0
    assert not sound.is_near_tie


def test_a_pass_that_is_right_is_explained(model: LlamaForCausalLM) -> None:
    found = differing(HuggingFaceModel(model), LAWS[0])
    assert found.is_explained
    assert 0 < found.error < found.rounding.bound / 4


def twins(model: LlamaForCausalLM, nudge: float) -> tuple[int, int]:
    """The first token of the answer, and another whose row of the head nearly equals its own."""
    first = fr.generate(model, PROMPT, drafter=None, max_new_tokens=1).tokens[0]
    twin = (first + 1) % 97
    with torch.no_grad():
        noise = torch.from_numpy(np.random.default_rng(0).normal(size=64)).to(model.dtype)
        model.lm_head.weight[twin] = model.lm_head.weight[first] * (1 + nudge * noise)
    return first, twin


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_near_ties_of_low_precision_are_no_bugs(
    model: LlamaForCausalLM, dtype: torch.dtype
) -> None:
    model = model.to(dtype)
    first, twin = twins(model, float(torch.finfo(dtype).eps) / 4)
    found = diagnose(model, PROMPT, [first], [twin])
    assert found is not None
    assert not found.is_bug, str(found)
    assert found.rounding.dtype == str(dtype).removeprefix("torch.")
    assert found.error > 1e-4  # float32 would not explain it


def test_a_rolled_pass_of_low_precision_is_a_bug(model: LlamaForCausalLM) -> None:
    found = differing(Tampered(model.bfloat16(), roll), LAWS[0])
    assert not found.is_near_tie
    assert "bfloat16 explains at most" in str(found)


def test_rows_that_lose_a_token_are_infinitely_far_away() -> None:
    row = np.array([1.0, 2.0, -np.inf, -1e9])
    assert distance(row, row) == 0
    assert distance(row, np.array([1.0, 2.0, -np.inf, -2e9])) == 0  # nothing chooses those
    assert distance(row, np.array([1.0, 2.5, -np.inf, -1e9])) == 0.5
    assert distance(row, np.array([-np.inf, 2.0, -np.inf, -1e9])) == np.inf
    assert distance(row, np.array([np.nan, 2.0, -np.inf, -1e9])) == np.inf


def test_the_bound_follows_the_arithmetic() -> None:
    row = np.array([4.0, -8.0, -np.inf, -1e30])
    small = SimpleNamespace(num_layers=4, hidden_size=64, compute_dtype="float32")
    fine = 4 * 2.0**-23 * 16 * 8
    assert rounding(small, row, "float64") == ("float32", fine, fine)
    small.compute_dtype = "bfloat16"
    assert rounding(small, row, "float32") == ("bfloat16", 4 * 2.0**-7 * 2 * 8, fine)
    assert rounding(object(), row, "torch.float16").dtype == "float16"
    small.is_routed, small.compute_dtype = True, "float32"
    assert rounding(small, row, "float32").bound == pytest.approx(0.15 * 6)
