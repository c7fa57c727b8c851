"""In 16 bits a bug may be as small as rounding: the doctor then asks for float32."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import forerun as fr
from cases import for_all
from forerun.cli import main
from forerun.doctor.diagnosis import diagnose
from forerun.doctor.rounding import MEASURED_MARGIN, distance, measured, rounding
from forerun.models import HuggingFaceModel

PROMPTS = [[7, 8, 9], [5, 5, 40, 41]]
LENGTH = 32
SHARES = [0.02, 0.05, 0.2]


class Mixed(HuggingFaceModel):
    """Every row of a pass holds a share of the row before it."""

    share = 0.0

    def score(
        self, state: Any, rows: Any, tokens: Any, num_logits: Any, parents: Any = None
    ) -> Any:
        right = super().score(state, rows, tokens, num_logits, parents)
        mixed = right.clone()
        mixed[:, 1:] += self.share * (right[:, :-1] - right[:, 1:])
        return mixed


@cache
def target(dtype: torch.dtype, share: float) -> Mixed:
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
    made = Mixed(LlamaForCausalLM(config).to(dtype).eval())
    made.share = share
    return made


class Foreseeing:
    """Guesses what the right model says next, so that drafts are long and their rows are used."""

    name = "foreseeing"

    def __init__(self, dtype: torch.dtype) -> None:
        self.texts: list[list[int]] = []
        for prompt in PROMPTS:
            out = fr.generate(target(dtype, 0.0), prompt, drafter=None, max_new_tokens=LENGTH)
            self.texts.append(prompt + out.tokens)

    def start(self, *_: Any) -> dict[int, list[int]]:
        return {}

    def enter(self, state: Any, row: int, tokens: Any, num_prompt: int) -> None:
        state[row] = list(tokens)

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> list[fr.drafters.Guess]:
        guesses = []
        for turn in turns:
            here = state[turn.row]
            text = next((text for text in self.texts if text[: len(here)] == here), here)
            guesses.append(fr.drafters.Guess(text[len(here) : len(here) + turn.budget]))
        return guesses

    def observe(self, state: Any, outcomes: Any) -> None:
        for outcome in outcomes:
            state[outcome.row] += outcome.tokens

    def release(self, state: Any, row: int) -> None:
        del state[row]


def examined(dtype: torch.dtype, share: float, **how: Any) -> Any:
    return fr.doctor(
        target(dtype, share),
        PROMPTS,
        drafter=Foreseeing(dtype),  # type: ignore[arg-type]
        max_new_tokens=LENGTH,
        **how,
    )


def wrong_at(model: Any, index: int) -> Any:
    """A diagnosis of two outputs that part at `index`, although the model did not choose so."""
    tokens = fr.generate(model, PROMPTS[0], drafter=None, max_new_tokens=index + 1).tokens
    return diagnose(model, PROMPTS[0], tokens, [*tokens[:index], (tokens[index] + 1) % 97])


@for_all("share", SHARES)
def test_in_float32_a_mixed_row_is_a_bug(share: float) -> None:
    found = wrong_at(target(torch.float32, share), 9)
    assert found.is_bug
    assert not found.is_explained
    assert found.error > 20 * found.rounding.bound


@for_all("share", SHARES)
def test_in_16_bits_a_mixed_row_is_a_bug_or_open_and_never_excused(share: float) -> None:
    found = examined(torch.bfloat16, share, repeat_in_float32=True)
    differing = [one.difference for one in found.findings if one.difference is not None]
    assert found.num_bugs == len(differing), str(found)  # float32 tells
    before = [replace(difference, in_float32=None) for difference in differing]
    assert not any(difference.is_near_tie for difference in before), before
    if share > 0.02:
        assert before
    if share == 0.02:
        assert all(difference.is_unclear for difference in before)


def test_a_fifth_of_another_row_is_seen_in_16_bits() -> None:
    model = target(torch.bfloat16, 0.2)
    found = [wrong_at(model, index) for index in (3, 6, 9)]
    assert all(not one.is_explained for one in found), [str(one) for one in found]


def twins(dtype: torch.dtype) -> tuple[Mixed, int, int]:
    """A sound model, the first token of its answer, and another that rounding makes as good."""
    made = Mixed(target(dtype, 0.0).in_float32().model.to(dtype))  # type: ignore[union-attr]
    first = fr.generate(made, PROMPTS[0], drafter=None, max_new_tokens=1).tokens[0]
    twin = (first + 1) % 97
    with torch.no_grad():
        noise = torch.from_numpy(np.random.default_rng(0).normal(size=64)).to(dtype)
        nudge = float(torch.finfo(dtype).eps) / 4
        made.model.lm_head.weight[twin] = made.model.lm_head.weight[first] * (1 + nudge * noise)
    return made, first, twin


@for_all("dtype", [torch.bfloat16, torch.float16])
def test_honest_near_ties_are_open_until_float32_excuses_them(dtype: torch.dtype) -> None:
    model, first, twin = twins(dtype)
    found = diagnose(model, PROMPTS[0], [first], [twin])
    assert found is not None
    assert not found.is_bug, str(found)
    if found.is_unclear:
        name = str(dtype).removeprefix("torch.")
        assert str(found).startswith(f"cannot tell in {name}: repeat in float32. At output token 0")
        wider: Any = model.in_float32()
        again = diagnose(wider, PROMPTS[0], [first], [twin])
        checked = replace(found, in_float32=again)
        assert checked.is_near_tie
        assert "; in float32 they differ by" in str(checked)


def test_texts_of_two_programs_are_judged_by_the_passes_of_both() -> None:
    """A program whose passes all have the same bits shows no rounding of its own."""
    model, prompt = target(torch.bfloat16, 0.0), [19, 33, 7]
    exact: Any = model.in_float32()
    texts = [
        fr.generate(one, prompt, drafter=None, max_new_tokens=LENGTH).tokens
        for one in (model, exact)
    ]
    by_both = diagnose(model, prompt, *texts, other=exact)
    assert by_both is not None
    assert by_both.reproduced
    assert not by_both.is_bug, str(by_both)
    score = exact.score
    exact.score = lambda *args: 1.5 * score(*args)
    with_fault = diagnose(model, prompt, *texts, other=exact)
    assert with_fault is not None
    assert with_fault.is_bug
    assert with_fault.worst_pass == "the other model's pass"


def test_a_tie_in_float32_needs_no_repetition() -> None:
    """Two tokens with one row of the head: whatever is computed, neither is the better."""
    model, first, twin = twins(torch.bfloat16)
    with torch.no_grad():
        model.model.lm_head.weight[twin] = model.model.lm_head.weight[first]
    found = diagnose(model, PROMPTS[0], [first], [twin])
    assert found is not None
    assert found.is_near_tie, str(found)


def test_sound_models_in_16_bits_have_no_bugs() -> None:
    """Their passes keep to two thirds of the bound, also at the place that strays the most."""
    for dtype in (torch.bfloat16, torch.float16):
        model = target(dtype, 0.0)
        for index in (3, 11):
            found = wrong_at(model, index)
            assert found.error <= found.rounding.bound / 1.5, (dtype, index, str(found))


def test_the_bound_is_measured_by_passes_from_scratch_only() -> None:
    """A model whose every speculative pass is wrong has the bound of the sound one."""
    sound, broken = target(torch.bfloat16, 0.0), target(torch.bfloat16, 0.9)
    text = [*PROMPTS[0], 3, 1, 4, 1, 5]
    assert measured(sound, text) == measured(broken, text) > 0
    row = sound.fresh(text).double().numpy()
    bound = rounding(sound, row, "bfloat16", text).bound
    assert bound == measured(sound, text)
    assert MEASURED_MARGIN * distance(row, sound.exact(text).double().numpy()) <= bound


def test_a_model_without_float32_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mixed, "in_float32", lambda self: None)
    found = examined(torch.bfloat16, 0.05)
    assert found.num_unclear
    with pytest.raises(fr.UnsupportedError, match="no float32 copy"):
        examined(torch.bfloat16, 0.05, repeat_in_float32=True)


def test_the_command_offers_to_repeat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = Foreseeing(torch.bfloat16)
    monkeypatch.setattr("forerun.cli.doctor.load_target", lambda *_: target(torch.bfloat16, 0.05))
    monkeypatch.setattr("forerun.cli.doctor.load_drafter", lambda *_: drafter)
    monkeypatch.setattr("forerun.cli.doctor.SAMPLES", PROMPTS)
    monkeypatch.setattr("forerun.cli.doctor._line", lambda *_, **__: "a line")
    main(["doctor", "--max-new-tokens", str(LENGTH)])
    assert "Run it again with --repeat-in-float32" in capsys.readouterr().out
    assert main(["doctor", "--max-new-tokens", str(LENGTH), "--repeat-in-float32"]) == 1
    assert "Run it again" not in capsys.readouterr().out
