"""Keys and values of 8 bits on a CUDA device: a token's logits are the same bits however it is
fed, and those of a model whose keys and values are rounded."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from eight_bits import RoundedReference  # noqa: E402
from families import FAMILY_SHAPES  # noqa: E402
from tiny import MIDDLING, ON_DEVICE, Reference, build, error, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = ON_DEVICE
LENGTH = 400
TEXT = [(7919 * place * place + 3) % 1000 for place in range(LENGTH)]
SIZES = MIDDLING | {"num_hidden_layers": 2, "vocab_size": 1000}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "heads of 128 in float16, four to a key": SIZES | {
        "head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 1, "dtype": torch.float16,
    },
    "norms, heads turned apart, windows": SIZES | FAMILY_SHAPES[
        "gemma3, with norms around and two rotary tables"
    ],
    "sinks": SIZES | FAMILY_SHAPES["gpt-oss, with sinks and biases"],
}  # fmt: skip


def fed(target: GpuModel, sizes: tuple[int, ...], beside: int = 0) -> torch.Tensor:
    """Logits (N, V) after each token, fed in passes of these sizes in turn, the first of them
    beside another text of so many tokens."""
    rows, at, logits = target.start(2, LENGTH + 1), 0, []
    for size in cycle(sizes):
        part = TEXT[at : at + size]
        if not part:
            return torch.cat(logits)
        if beside and not at:
            scored = target.score(rows, [1, 0], [TEXT[:beside], part], [1, len(part)])
        else:
            scored = target.score(rows, [0], [part], [len(part)])
        logits.append(scored[-1, : len(part)].clone())
        target.commit(rows, [0], [len(part)])
        at += len(part)
    raise AssertionError


@pytest.mark.parametrize("name", SHAPES)
def test_passes_of_all_sizes_have_the_same_bits(name: str) -> None:
    model = build(**{"dtype": torch.bfloat16, **SHAPES[name]}, device="cuda")
    target = GpuModel(model, kv_dtype="float8")
    whole = fed(target, (LENGTH,))
    torch.set_float32_matmul_precision("highest")
    exact, plain = (kind(model).logits(TEXT) for kind in (RoundedReference, Reference))
    if "experts" not in target._weights.form.features:  # which nearly tied scores may exchange
        assert error(whole, exact) < 0.1
    assert (whole - exact).norm() < (whole - plain).norm()
    for sizes in ((1,), (6,), (16,), (48,), (128,), (16, 128, 60)):
        assert torch.equal(fed(target, sizes), whole)
    assert torch.equal(fed(target, (48,), beside=70), whole)


@pytest.mark.parametrize("begin", [60, 64, 122, 250])
def test_nodes_of_a_tree_have_the_bits_of_their_texts_and_move(begin: int) -> None:
    """Around the middle of a page, where keys change from the low to the high halves of words."""
    target = GpuModel(build(dtype=torch.bfloat16, device="cuda", **SIZES), kv_dtype="float8")
    whole, rows = fed(target, (LENGTH,)), target.start(1, LENGTH)
    target.score(rows, [0], [TEXT[:begin]], [1])
    target.commit(rows, [0], [begin])
    line = [TEXT[begin], 17, TEXT[begin + 1], 18, TEXT[begin + 2]]
    nodes = target.score(rows, [0], [line], [5], [[-1, -1, 0, 1]])[0].clone()
    assert torch.equal(nodes[[0, 2, 4]], whole[begin : begin + 3])
    target.commit(rows, [0], [[0, 2, 4]])
    after = target.score(rows, [0], [TEXT[begin + 3 : begin + 40]], [37])[0]
    assert torch.equal(after, whole[begin + 3 : begin + 40])


def test_texts_are_the_same_with_and_without_drafts() -> None:
    """In captured rounds, and with trees and guesses of the host."""
    model = build(dtype=torch.bfloat16, device="cuda", **SIZES)
    target, draft = GpuModel(model, kv_dtype="float8"), GpuModel(noisy_copy(model, 0.1))
    prompts = [TEXT[:100], TEXT[3:60], TEXT[7:20]]
    how: dict[str, Any] = {"max_new_tokens": 40, "sampling": fr.Sampling(seed=5)}
    plain = [one.tokens for one in fr.generate(target, prompts, drafter=None, **how)]
    for drafter, options in (
        (fr.drafters.Model(draft), {"draft_length": 3}),
        (fr.drafters.Model(draft), {"tree": 6}),
        (fr.drafters.NGram(), {"draft_length": 4}),
    ):
        answers = fr.generate(target, prompts, drafter=drafter, **options, **how)
        assert [one.tokens for one in answers] == plain
