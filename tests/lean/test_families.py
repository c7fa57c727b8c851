"""The same bits in every company, for each family of models, windows and long texts included."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import Architecture, random_tokens, random_tree

pytest.importorskip("numba")

from forerun.lean import rows
from forerun.lean.attention import PAGE
from forerun.lean.model import LeanModel
from forerun.lean.page_tile import QUERIES

WINDOW = 70  # more than a page, and no multiple of one
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW, "head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
         "head_dim": 40, "num_key_value_heads": 1},
    ),
}  # fmt: skip


def build(name: str) -> Any:
    kind, options = FAMILIES[name]
    sizes = {"max_position_embeddings": 2048}
    return Architecture(kind, "", {**sizes, **options}, dtype=torch.float32).build()


def one_by_one(lean: LeanModel, text: list[int]) -> Any:
    state, logits = lean.start(1), []
    for token in text:
        logits.append(lean.score(state, [0], [[token]], [1])[0])
        lean.commit(state, [0], [1])
    return torch.cat(logits)


def in_mixed_company(lean: LeanModel, text: list[int], generator: random.Random) -> Any:
    """Passes of 1 to 200 tokens, with drafts behind them and other rows beside."""
    state, logits, done = lean.start(3), [], 0
    while done < len(text):
        count = min(generator.choice((1, 2, 3, 5, 6, 7, 8, 13, 40, 200)), len(text) - done)
        draft = random_tokens(generator, generator.randint(0, 5))
        others = [random_tokens(generator, generator.randint(1, 90)) for _ in range(2)]
        tokens = [others[0], text[done : done + count] + draft, others[1]]
        scored = lean.score(state, [0, 1, 2], tokens, [1, count + len(draft), 1])
        logits.append(scored[1, :count])
        lean.commit(state, [0, 1, 2], [0, count, 0])
        done += count
    return torch.cat(logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_thousand_tokens_have_the_same_bits_in_every_company(name: str) -> None:
    model, generator = build(name), random.Random(0)
    text = random_tokens(generator, 1000)
    alone, together = LeanModel(model, num_threads=1), LeanModel(model, num_threads=2)
    expected = alone.score(alone.start(1), [0], [text], [len(text)])[0]
    assert torch.equal(one_by_one(together, text), expected)
    assert torch.equal(in_mixed_company(alone, text, generator), expected)
    assert torch.equal(in_mixed_company(together, text, generator), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_threads_that_share_a_tile_change_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the nodes of a tree, and where the text is hardly longer than the window."""
    model, generator = build(name), random.Random(1)
    keys = model.config.num_key_value_heads
    num_tiles = keys * -(-13 * model.config.num_attention_heads // (keys * QUERIES))
    num_threads = next(count for count in (2, 3, 4, 5) if num_tiles % count)
    whole, shared = LeanModel(model, num_threads=1), LeanModel(model, num_threads=num_threads)
    monkeypatch.setattr(rows, "LONG", 0)
    for length in (1, PAGE - 1, WINDOW, 3 * PAGE + 1, 300):
        text, draft = random_tokens(generator, length), random_tokens(generator, 12)
        tree = random_tree(generator, 12)
        parts = []
        for lean in (whole, shared):
            state = lean.start(1)
            lean.score(state, [0], [text[:-1] or text], [1])
            lean.commit(state, [0], [length - 1])
            parts.append(lean.score(state, [0], [text[-1:] + draft], [13], [tree.parents]))
            assert (len(state._split) > 0) == (lean is shared)  # a tile is left over
        assert torch.equal(*parts)
