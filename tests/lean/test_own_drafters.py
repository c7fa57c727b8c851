"""Drafters made out of a target that runs on the lean pass: its first layers, its rounded self."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import Architecture, Driver, largest, random_tokens, random_tree

pytest.importorskip("numba")

import forerun as fr
from forerun import Sampling
from forerun.base.errors import InputError
from forerun.drafters import EarlyExit, Quantized
from forerun.lean.model import LeanModel
from forerun.models import HuggingFaceModel
from forerun.models.first_layers import truncated

PROMPTS = [[(3 * i) % 61 for i in range(70)], [3], [5, 4, 3, 2, 1]]


@cache
def target() -> LeanModel:
    model = Architecture("llama", "", {"num_hidden_layers": 4}, dtype=torch.float32).build()
    for layer in model.model.layers[2:]:
        for weights in layer.parameters():
            weights.data *= 0.55
    return LeanModel(model, num_threads=2)


def test_first_layers_score_and_the_whole_never_notices() -> None:
    whole = target()
    driver = Driver(whole, whole.model, num_rows=3)
    shallow = whole.first_layers(driver.state, 2)  # type: ignore[arg-type]
    rows, generator = shallow.start(3, 128), random.Random(7)
    for row, length in enumerate((60, 1, 4)):  # the first outgrows its cache while drafting
        driver.enter(row, random_tokens(generator, length))
    for _ in range(5):
        pending = [driver.texts[r][rows.lengths[r] :] for r in range(3)]
        draft: list[list[int]] = [[], [], []]
        for _ in range(3):
            feeds = [pending[r] + draft[r] for r in range(3)]
            logits = shallow.score(rows, [0, 1, 2], feeds, [1, 1, 1])
            for r in range(3):
                with torch.inference_mode():
                    alone = torch.tensor([driver.texts[r] + draft[r]])
                    short = truncated(whole.model, 2)(alone, use_cache=False).logits
                assert largest(logits[r, 0] - short[0, -1]) <= 1e-4
                draft[r].append(int(logits[r, 0].argmax()))
        trees = [None, random_tree(generator, 3), None]
        driver.tree_round([0, 1, 2], draft, trees, [generator.randint(-1, 2) for _ in range(3)])
        shallow.commit(rows, [0, 1, 2], [0, 0, 0])
    assert driver.worst <= 1e-4


def same_text(drafter: Any, **how: Any) -> list[fr.Generation]:
    how = {"sampling": Sampling(0.8, seed=4), "max_new_tokens": 20} | how
    wanted = fr.generate(
        target(), PROMPTS, drafter=None, sampling=how["sampling"], max_new_tokens=20
    )
    found: list[fr.Generation] = fr.generate(target(), PROMPTS, drafter=drafter, **how)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
    assert all(answer.stats.notes == [] for answer in found)
    assert sum(answer.stats.accepted for answer in found) > 0
    return found


@pytest.mark.parametrize("how", [{"draft_length": 4}, {"draft_length": 4, "tree": 9}], ids=str)
@pytest.mark.parametrize("drafter", [EarlyExit(2), Quantized("int8"), Quantized("int4")])
def test_text_is_that_of_the_target(drafter: Any, how: dict[str, Any]) -> None:
    same_text(drafter, **how)


def test_all_layers_are_the_target_itself() -> None:
    for answer in same_text(EarlyExit(4), draft_length=3):
        assert answer.stats.acceptance_rate == 1


def test_more_layers_than_there_are() -> None:
    with pytest.raises(InputError, match=r"has 4 layers.*first 5.*1 to 4"):
        fr.generate(target(), [1], drafter=EarlyExit(5), max_new_tokens=2)


def test_a_rounded_copy_runs_on_the_lean_pass_where_it_can() -> None:
    options = {"hidden_size": 64, "intermediate_size": 96}
    lean = LeanModel(Architecture("llama", "", options, dtype=torch.float32).build())
    rounded = lean.rounded("int8")
    assert isinstance(rounded, LeanModel)
    assert rounded.name == "LlamaForCausalLM-int8"
    assert isinstance(lean.rounded("int4"), HuggingFaceModel)
    assert isinstance(target().rounded("int8"), HuggingFaceModel)  # 48 wide: no whole blocks
