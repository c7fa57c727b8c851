"""Greedy texts of the lean pass against those of transformers' own `generate`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import Architecture, random_tokens

pytest.importorskip("numba")

import forerun as fr
from forerun import prompts
from forerun.loading.bundled import GEMMA, PACKAGES, packaged_parts
from forerun.loading.cpu_pass import choose
from forerun.models import HuggingFaceModel

NUM_TEXTS = 24
needs_gemma = pytest.mark.skipif(not packaged_parts(GEMMA), reason=PACKAGES[GEMMA].install)


def transformers_text(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count
        )
    return [int(token) for token in text[0, len(prompt) :]]


def differing(lean: Any, texts: list[list[int]], count: int) -> list[str]:
    """How near a tie was where a text leaves that of transformers; nothing if none does."""
    found = []
    for prompt in texts:
        ours = list(fr.generate(lean, prompt, drafter=None, max_new_tokens=count).tokens)
        theirs = transformers_text(lean.model, prompt, count)
        if ours != theirs:
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            logits = lean.fresh([*prompt, *ours[:at]])
            gap = float((logits[ours[at]] - logits[theirs[at]]).abs() / logits.std())
            found.append(f"token {at}: a gap of {gap:.1e} spreads")
    return found


@pytest.mark.slow
def test_texts_of_a_qwen3_are_those_of_transformers() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "head_dim": 32, "intermediate_size": 160}
    model = Architecture("qwen3", "", sizes, dtype=torch.float32).build()
    lean = choose(HuggingFaceModel(model), lean=True)
    generator = random.Random(0)
    texts = [random_tokens(generator, generator.randint(3, 40)) for _ in range(NUM_TEXTS)]
    assert differing(lean, texts, 24) == []


@needs_gemma
@pytest.mark.slow
def test_texts_of_gemma_are_those_of_transformers() -> None:
    lean: Any = fr.load(GEMMA)
    assert lean.pass_name.startswith("lean CPU pass")
    picked = prompts.pick(prompts.own(), NUM_TEXTS // len(prompts.GROUPS))
    texts = [lean.tokenizer.encode(prompt.text) for prompt in picked]
    assert len(texts) == NUM_TEXTS
    assert differing(lean, texts, 24) == []
