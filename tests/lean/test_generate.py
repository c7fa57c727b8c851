"""The engine on the lean pass: the same text with and without a drafter, and as transformers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import Architecture, random_tokens

pytest.importorskip("numba")

import forerun as fr
from forerun.lean.model import LeanModel


def theirs(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def test_greedy_text_is_that_of_transformers_with_and_without_a_drafter() -> None:
    model = Architecture("llama", "", dtype=torch.float32).build()
    lean = LeanModel(model, num_threads=2)
    generator = random.Random(0)
    prompts = [random_tokens(generator, count) for count in (3, 9, 17)]
    plain = fr.generate(lean, prompts, drafter=None, max_new_tokens=40)
    drafted = fr.generate(lean, prompts, drafter=fr.drafters.NGram(), max_new_tokens=40)
    for prompt, one, other in zip(prompts, plain, drafted, strict=True):
        assert list(one.tokens) == list(other.tokens) == theirs(model, prompt, 40)


def test_sampled_text_does_not_depend_on_the_draft_or_the_batch() -> None:
    lean = LeanModel(Architecture("qwen3", "", dtype=torch.float32).build(), num_threads=2)
    generator = random.Random(1)
    prompts = [random_tokens(generator, count) for count in (5, 11, 2, 30)]
    sampling = fr.Sampling(temperature=1.0, seed=7)
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 30}
    together = fr.generate(lean, prompts, drafter=None, **options)
    drafted = fr.generate(lean, prompts, drafter=fr.drafters.NGram(), batch_size=2, **options)
    assert [list(g.tokens) for g in together] == [list(g.tokens) for g in drafted]
