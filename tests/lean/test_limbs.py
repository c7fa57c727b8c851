"""Models of 4-bit and 8-bit weights: the same bits in every company, by either kind of products."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import fresh_logits, largest, random_tokens

pytest.importorskip("numba")

from few_bits import FORMATS, PASSES, Q4_K_M, few_bit_model, lean_model
from numba.core.errors import NumbaError
from numba.core.runtime import _nrt_python, rtsys

from forerun.lean import storage
from forerun.lean.dots import LIMBS_8
from forerun.lean.formats import Format
from forerun.lean.jit import compiled
from forerun.lean.model import LeanModel
from forerun.lean.shape import LANES
from forerun.loading.bundled import packaged_weights
from forerun.loading.default import default_model

NUM_TOKENS = 1000


@pytest.fixture(autouse=True)
def blocks_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a processor where they do not: the products must be right."""
    monkeypatch.setattr(storage, "BLOCKS_PAY", True)


def one_by_one(lean: LeanModel, text: list[int]) -> Any:
    """Logits (N, V)."""
    state, logits = lean.start(1, len(text)), []
    for token in text:
        logits.append(lean.score(state, [0], [[token]], [1])[0])
        lean.commit(state, [0], [1])
    return torch.cat(logits)


def in_mixed_company(lean: LeanModel, text: list[int], generator: random.Random) -> Any:
    """The same logits from passes of 1 to 40 tokens, with drafts behind and other rows beside."""
    state, logits, done = lean.start(3, len(text)), [], 0
    while done < len(text):
        count = min(generator.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 40)), len(text) - done)
        draft = random_tokens(generator, generator.randint(0, 5))
        others = [random_tokens(generator, generator.randint(1, 9)) for _ in range(2)]
        tokens = [others[0], text[done : done + count] + draft, others[1]]
        scored = lean.score(state, [0, 1, 2], tokens, [1, count + len(draft), 1])
        logits.append(scored[1, :count])
        lean.commit(state, [0, 1, 2], [0, count, 0])
        done += count
    return torch.cat(logits)


def check_every_company(
    make: Callable[[int], LeanModel], text: list[int], formats: set[Format]
) -> None:
    generator = random.Random(5)
    alone, together = make(1), make(2)
    assert set(alone._weights.matrices.format) == formats
    expected = one_by_one(alone, text)
    assert torch.equal(one_by_one(together, text), expected)
    for lean in (alone, together):
        state = lean.start(1, len(text))
        assert torch.equal(lean.score(state, [0], [text], [len(text)])[0], expected)
        assert torch.equal(in_mixed_company(lean, text, generator), expected)


@pytest.mark.parametrize("name", PASSES)
def test_a_thousand_tokens_have_the_same_bits_in_every_company(name: str, tmp_path: Path) -> None:
    text = random_tokens(random.Random(4), NUM_TOKENS)
    model, raws = few_bit_model(FORMATS[name], tmp_path)
    check_every_company(lambda threads: lean_model(model, raws, threads), text, set(FORMATS[name]))


def test_queries_keys_and_values_are_kept_in_formats_of_their_own(tmp_path: Path) -> None:
    model, raws = few_bit_model(Q4_K_M, tmp_path)
    attention = model.model.layers[0].self_attn
    matrices = lean_model(model, raws)._weights.matrices
    assert matrices.takes_limbs.all() == LIMBS_8
    formats = matrices.format
    sizes = [x.out_features // LANES for x in (attention.q_proj, attention.k_proj)]
    assert formats[: sum(sizes) + 1].tolist() == [
        *[Format.BLOCK4K] * sizes[0],
        *[Format.BLOCK6K] * sizes[1],
        Format.BLOCK5K,
    ]


@pytest.mark.slow
@pytest.mark.skipif(packaged_weights() is None, reason="the default model is not installed")
def test_a_thousand_tokens_of_the_default_model() -> None:
    model: Any = default_model(lean=False)
    question = "Explain to a curious child, step by step and with an example, why the sky is blue. "
    text = model.tokenizer.encode(question * 60)[:NUM_TOKENS]
    assert len(text) == NUM_TOKENS
    check_every_company(
        lambda threads: LeanModel(model.model, num_threads=threads),
        text,
        {Format.BLOCK4, Format.BLOCK8},
    )


@pytest.mark.parametrize("name", PASSES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, raws = few_bit_model(FORMATS[name], tmp_path)
    lean = lean_model(model, raws)
    text = random_tokens(random.Random(6), 200)
    expected = fresh_logits(model, text)
    logits = lean.score(lean.start(1, 200), [0], [text], [200])[0]
    bound = 1e-3 if set(FORMATS[name]) & set(Q4_K_M) else 1e-4  # any bytes, large scores
    assert largest(logits - expected) < bound * largest(expected)


def test_what_is_not_finite_is_seen_in_the_logits(tmp_path: Path) -> None:
    model, _ = few_bit_model((Format.BLOCK4,), tmp_path)
    model.model.embed_tokens.weight.data[7, 3] = torch.inf
    lean = LeanModel(model, num_threads=1)
    state = lean.start(1, 8)
    for token, is_finite in ((1, True), (7, False)):
        logits = lean.score(state, [0], [[token]], [1])
        lean.commit(state, [0], [1])
        assert torch.isfinite(logits).all() if is_finite else not torch.isfinite(logits).any()


def test_a_pass_leaves_no_array_behind(tmp_path: Path) -> None:
    """Most of it does not count references: what is made must be freed all the same."""
    lean = LeanModel(few_bit_model((Format.BLOCK4,), tmp_path)[0], num_threads=1)
    state = lean.start(1, 64)
    lean.score(state, [0], [[1, 2, 3]], [3])
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        for _ in range(20):
            lean.score(state, [0], [[4, 5, 6]], [3])
            lean.commit(state, [0], [1])
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.mi_alloc > before.mi_alloc
    assert after.mi_alloc - before.mi_alloc == after.mi_free - before.mi_free
    assert after.alloc - before.alloc == after.free - before.free


def test_what_does_not_count_references_makes_no_array() -> None:
    @compiled
    def make(size: int) -> int:
        return len(np.empty(size, np.float32))

    with pytest.raises(NumbaError, match="Only accept returning of array"):
        make(3)
