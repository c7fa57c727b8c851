"""The first layers of a model, under its own head and on its own rows."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from architectures import ATTENTION, RECURRENT
from tiny_models import Architecture, Driver, largest, random_tokens, random_tree

from forerun.base.errors import InputError, UnsupportedError
from forerun.models import HuggingFaceModel
from forerun.models.first_layers import truncated

CROPPED = [a for a in ATTENTION if a.strategy == "crop"]
COMMON = {"llama", "gpt2", "mistral", "gemma3_text", "gemma3n_text", "qwen3", "mixtral"}
DEEP = {"num_hidden_layers": 3, "n_layer": 3}


@torch.inference_mode()
def shallow_logits(model: Any, text: list[int], num_layers: int) -> Any:
    """What the head says after `num_layers` layers, from the states that a whole pass reports."""
    output = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    return model.lm_head(model.model.norm(output.hidden_states[num_layers][0]))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "phi3", "olmo2", "smollm3"])
def test_the_first_layers_are_those_of_the_model(kind: str) -> None:
    found = next(a for a in CROPPED if a.kind == kind)
    model = Architecture(kind, "crop", {**found.options, **DEEP}).build()
    before = sum(p.numel() for p in model.parameters())
    text = list(range(2, 17))
    with torch.inference_mode():
        ours = truncated(model, 2)(torch.tensor([text]), use_cache=False).logits[0]
    assert largest(ours - shallow_logits(model, text, 2)) <= 1e-9
    assert len(model.model.layers) == 3  # the model itself is whole
    assert sum(p.numel() for p in model.parameters()) == before
    owned = {id(p) for p in model.parameters()}
    assert all(id(p) in owned for p in truncated(model, 2).parameters())


def chosen(architecture: Architecture) -> Any:
    is_common = architecture.kind in COMMON and architecture.attention is None
    marks = () if is_common else (pytest.mark.slow,)
    return pytest.param(architecture, marks=marks, id=str(architecture))


@pytest.mark.parametrize("architecture", [chosen(each) for each in CROPPED])
def test_the_rows_of_the_model_never_notice(architecture: Architecture) -> None:
    """Between its rounds the first layers draft on them; its scores stay those of fresh passes."""
    model = architecture.build()
    language_model = HuggingFaceModel(model)
    driver = Driver(language_model, model, num_rows=3)
    shallow = language_model.first_layers(driver.state, 1)  # type: ignore[arg-type]
    rows = shallow.start(3, 128)
    generator = random.Random(7)
    for row, length in enumerate((9, 1, 4)):
        driver.enter(row, random_tokens(generator, length))
    for _ in range(5):
        pending = [driver.texts[r][rows.lengths[r] :] for r in range(3)]
        draft: list[list[int]] = [[], [], []]
        for _ in range(3):
            feeds = [pending[r] + draft[r] for r in range(3)]
            logits = shallow.score(rows, [0, 1, 2], feeds, [1, 1, 1])
            for r in range(3):
                with torch.inference_mode():
                    alone = driver.texts[r] + draft[r]
                    short = truncated(model, 1)(torch.tensor([alone]), use_cache=False)
                assert largest(logits[r, 0] - short.logits[0, -1]) <= architecture.tolerance
                draft[r].append(int(logits[r, 0].argmax()))
        trees = [None, random_tree(generator, 3), None]
        driver.tree_round([0, 1, 2], draft, trees, [generator.randint(-1, 2) for _ in range(3)])
        shallow.commit(rows, [0, 1, 2], [0, 0, 0])
    assert driver.worst <= architecture.tolerance


def test_a_score_of_the_model_is_not_built_on_afterwards() -> None:
    """Its first layers wrote other tokens over what it had scored and not committed."""
    model = Architecture("llama", "crop").build()
    language_model = HuggingFaceModel(model)
    driver = Driver(language_model, model, 1)
    driver.enter(0, [3, 1, 4])
    shallow = language_model.first_layers(driver.state, 1)  # type: ignore[arg-type]
    language_model.score(driver.state, [0], [[3, 1, 4, 1, 5]], [1])
    shallow.score(shallow.start(1, 8), [0], [[9, 9, 9, 9, 9]], [1])
    assert driver.round([0], [[1, 5, 9]], [2]) <= 1e-9


def test_what_has_no_first_layers_is_refused() -> None:
    language_model = HuggingFaceModel(Architecture("llama", "crop").build())
    state = language_model.start(1, 8)
    for number in (3, 0):
        with pytest.raises(InputError, match=f"has 2 layers.*first {number}.*1 to 2"):
            language_model.first_layers(state, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recurrent = HuggingFaceModel(RECURRENT[1].build())
        with pytest.raises(UnsupportedError, match="Mamba2ForCausalLM"):
            recurrent.first_layers(recurrent.start(1, 8), 1)
    twice = Architecture("llama", "crop").build()
    twice.more = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
    with pytest.raises(UnsupportedError, match=r"not one list.*LlamaForCausalLM"):
        truncated(twice, 1)
    spread = Architecture("llama", "crop").build()
    spread.model.forward = spread.model.forward
    with pytest.raises(UnsupportedError, match=r"replaced.*LlamaModel"):
        truncated(spread, 1)
