"""Short passes with fixed inputs, as they are captured on a GPU, run here without graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

import forerun as fr
from forerun.models import crop
from forerun.models.captured_pass import CapturedPasses
from forerun.models.huggingface import HuggingFaceModel

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "head_dim": 8,
    "max_position_embeddings": 600,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9, 10, 11]]


def make(name: str) -> Any:
    torch.manual_seed(0)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    config = Gemma3TextConfig(**SIZES, sliding_window=8, layer_types=KINDS)
    return Gemma3ForCausalLM(config).eval()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Rows made from now on run short passes as if they were captured; the sizes of these."""
    sizes: list[tuple[int, ...]] = []
    start = crop.CropRows.__init__

    class Counted(CapturedPasses):
        def run(self, ids: Any, *args: Any) -> Any:
            sizes.append(tuple(ids.shape))
            return super().run(ids, *args)

    def init(self: Any, *args: Any) -> None:
        start(self, *args)
        self.captured = Counted(self._forward, self._cache, self._kinds, capture=False)

    monkeypatch.setattr(crop.CropRows, "__init__", init)
    return sizes


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_texts_are_those_of_plain_passes(name: str, runs: list[tuple[int, ...]]) -> None:
    """Chains and trees, rows of different length, windows, and storage that grows."""
    model = make(name)
    how: dict[str, Any] = {"sampling": fr.Sampling(0.8, seed=1), "max_new_tokens": 12}
    expected = [
        fr.generate(
            HuggingFaceModel(model, strategy="recompute"), prompt, drafter=None, **how
        ).tokens
        for prompt in PROMPTS
    ]
    assert not runs
    target = HuggingFaceModel(model)
    for case in (
        {"drafter": None},
        {"drafter": fr.drafters.NGram(), "draft_length": 3},
        {"drafter": fr.drafters.Model(target), "tree": 6},
    ):
        outs = fr.generate(target, PROMPTS, **case, **how)
        assert [out.tokens for out in outs] == expected
    assert len(set(runs)) > 2


def test_storage_that_grows_leaves_no_stale_pass(runs: list[tuple[int, ...]]) -> None:
    """A text that passes 256 keys is read from larger storage, in passes of another size."""
    model = make("llama")
    target = HuggingFaceModel(model, strategy="crop")
    rows = target.start(1)
    text = [(7 * i) % 61 for i in range(262)]
    target.score(rows, [0], [text[:250]], [1])
    target.commit(rows, [0], [250])
    with torch.inference_mode():
        fresh = model(torch.tensor([text])).logits[0]
        for at in range(250, 262):
            scored = target.score(rows, [0], [[text[at]]], [1])[0, 0]
            assert torch.allclose(scored, fresh[at], atol=1e-4)
            target.commit(rows, [0], [1])
    assert runs
