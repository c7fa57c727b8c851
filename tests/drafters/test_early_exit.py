"""The target's first layers draft on the target's own rows, and the text never shows it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tiny_models import Architecture

import forerun as fr
from forerun import Sampling
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import EarlyExit, early_exit
from forerun.models import LanguageModel, TableModel

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [3], [5, 4, 3, 2, 1]]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen3": {"head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 128},
}


@cache
def target(kind: str) -> LanguageModel:
    """Four layers of which the last ones move little, as in trained models."""
    model = Architecture(kind, "crop", {"num_hidden_layers": 4, **KINDS[kind]}).build()
    layers = model.transformer.h if kind == "gpt2" else model.model.layers
    for layer in layers[2:]:
        for weights in layer.parameters():
            weights.data *= 0.55
    return fr.wrap(model)


def same_text(kind: str, drafter: EarlyExit, **how: Any) -> list[fr.Generation]:
    """The answers with this drafter, after a check that they are those without."""
    how = {"sampling": Sampling(seed=4), "max_new_tokens": 20} | how
    wanted = fr.generate(
        target(kind), PROMPTS, drafter=None, sampling=how["sampling"], max_new_tokens=20
    )
    found: list[fr.Generation] = fr.generate(target(kind), PROMPTS, drafter=drafter, **how)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
    assert all(answer.stats.notes == [] for answer in found)
    return found


@pytest.mark.parametrize(
    ("kind", "how", "temperature"),
    [
        pytest.param(
            kind,
            {"draft_length": 4, "tree": tree},
            temperature,
            marks=() if kind == "llama" or bool(tree) == bool(temperature) else pytest.mark.slow,
        )
        for kind in KINDS  # by default others than the first have greedy chains and sampled trees
        for tree in (None, 9)
        for temperature in (0.0, 0.8)
    ],
    ids=str,
)
def test_text_is_that_of_the_target(kind: str, how: dict[str, Any], temperature: float) -> None:
    answers = same_text(kind, EarlyExit(2), sampling=Sampling(temperature, seed=4), **how)
    accepted = sum(answer.stats.accepted for answer in answers)
    drafted = sum(answer.stats.drafted for answer in answers)
    assert 0 < accepted < drafted


def test_all_layers_are_the_target_itself() -> None:
    for answer in same_text("llama", EarlyExit(4), draft_length=3):
        assert answer.stats.acceptance_rate == 1


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_rules_that_need_its_law_get_it(rule: str) -> None:
    answers = fr.generate(
        target("llama"),
        PROMPTS,
        drafter=EarlyExit(2, temperature=1.2),
        rule=rule,
        sampling=Sampling(seed=3),
        max_new_tokens=20,
    )
    assert all(answer.stats.drafted > 0 and answer.stats.notes == [] for answer in answers)
    assert sum(answer.stats.accepted for answer in answers) > 0


def test_it_is_refused_where_it_cannot_be() -> None:
    for wrong in (0, -1, 2.0, True, "2"):
        with pytest.raises(InputError, match="number of layers"):
            EarlyExit(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"has 4 layers.*first 5.*1 to 4"):
        fr.generate(target("llama"), [1], drafter=EarlyExit(5), max_new_tokens=2)
    table = TableModel.random(vocab_size=6, order=1, seed=0)
    with pytest.raises(UnsupportedError, match=r"TableModel.*transformers"):
        fr.generate(table, [1], drafter=EarlyExit(1), max_new_tokens=2)


def test_one_drafter_serves_several_targets() -> None:
    drafter = EarlyExit(3)
    assert drafter.name == "early-exit:3"
    for kind in ("llama", "gpt2", "llama"):
        same_text(kind, drafter)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_it_finds_its_own_number_of_layers(kind: str) -> None:
    """Its last two layers hardly change anything, so two of four do nearly as well as all."""
    drafter = EarlyExit()
    assert drafter.name == "early-exit"
    assert drafter.depth(target(kind)) == 2
    same_text(kind, drafter, draft_length=3)


def test_the_number_of_layers_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(early_exit, "best_depth", lambda model: asked.append(model) or 3)
    drafter = EarlyExit()
    for kind in ("llama", "gpt2", "llama"):
        assert drafter.depth(target(kind)) == 3
    assert asked == [target("llama"), target("gpt2")]
