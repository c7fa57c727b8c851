"""The lean GPU pass on a CUDA device: a token's logits are the same bits however it is fed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from tiny import MIDDLING, ON_DEVICE, Reference, build, error, stored  # noqa: E402

from forerun.gpu.attention import Cache  # noqa: E402
from forerun.gpu.forward import Kernels, Scratch  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.shapes import Inputs, PassShape  # noqa: E402
from forerun.gpu.weights import Weights  # noqa: E402
from forerun.models.families import Family, Form  # noqa: E402

pytestmark = ON_DEVICE
DEVICE = "cuda"
LENGTH, SHORT = 500, 90  # tokens of a text
SIZES = MIDDLING
ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.1}
"""Share of the logits' spread; a wrong mask, position or weight moves them by all of it."""


def text_of(seed: int, length: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(SIZES["vocab_size"]) for _ in range(length)]


@pytest.fixture(scope="module")
def target() -> GpuModel:
    return GpuModel(build(dtype=torch.bfloat16, device=DEVICE, **SIZES))


def fed(
    target: GpuModel, texts: dict[int, list[int]], sizes: Sequence[int], num_rows: int = 1
) -> dict[int, Any]:
    """Logits (N, V) after each token of texts by row, fed in steps of these sizes in turn."""
    rows = target.start(num_rows, max(map(len, texts.values())))
    logits: dict[int, list[Any]] = {row: [] for row in texts}
    for size in cycle(sizes):
        going = [row for row, text in texts.items() if rows.lengths[row] < len(text)]
        if not going:
            break
        parts = [texts[row][rows.lengths[row] :][:size] for row in going]
        scored = target.score(rows, going, parts, list(map(len, parts)))
        target.commit(rows, going, list(map(len, parts)))
        for index, (row, part) in enumerate(zip(going, parts, strict=True)):
            logits[row].append(scored[index, : len(part)].clone())
    return {row: torch.cat(parts) for row, parts in logits.items()}


@pytest.fixture(scope="module")
def one_by_one(target: GpuModel) -> Any:
    return fed(target, {0: text_of(0, LENGTH)}, [1])[0]


def num_differing(ours: Any, theirs: Any) -> int:
    assert ours.shape == theirs.shape
    assert not ours.isnan().any()
    return int((ours != theirs).sum())


@pytest.mark.parametrize(
    "sizes", [[6], [1, 3, 16, 7, 60, 2, 128, 40, 17], [64], [129], [300, 200], [500]], ids=str
)
def test_in_steps(target: GpuModel, one_by_one: Any, sizes: list[int]) -> None:
    assert num_differing(fed(target, {0: text_of(0, LENGTH)}, sizes)[0], one_by_one) == 0


@pytest.mark.parametrize("num_rows", [1, 7, 32])
@pytest.mark.parametrize("size", [1, 6])
def test_beside_others_and_in_any_row(
    target: GpuModel, one_by_one: Any, num_rows: int, size: int
) -> None:
    """Texts of all lengths, one of them in the last row the same as alone in the first."""
    texts = {row: text_of(row + 1, 3 + 5 * row) for row in range(num_rows - 1)}
    texts[num_rows - 1] = text_of(0, LENGTH)[:SHORT]
    logits = fed(target, texts, [size], num_rows)
    assert num_differing(logits[num_rows - 1], one_by_one[:SHORT]) == 0
    for row in range(0, num_rows - 1, 5):
        alone = fed(target, {0: texts[row]}, [4])[0]
        assert num_differing(logits[row], alone) == 0


def test_a_prompt_in_passes_of_all_widths(target: GpuModel) -> None:
    """Its keys and values, and the logits of what follows, alone and beside another prompt."""
    text, other = text_of(5, 2000), text_of(6, 700)

    def read(*sizes: int, beside: bool = False) -> list[Any]:
        rows, at = target.start(2, 2100), 0
        for size in sizes:
            feeds = [text[at : at + size]]
            if beside and not at:
                target.score(rows, [0, 1], [*feeds, other], [1, 1])
                target.commit(rows, [0, 1], [size, len(other)])
            else:
                target.score(rows, [0], feeds, [1])
                target.commit(rows, [0], [size])
            at += size
        logits = target.score(rows, [0], [text[at:]], [len(text) - at])[0][-8:]
        return [*stored(rows.storage, 0, at), logits]

    narrow = read(*[128] * 15, 72)
    for sizes, beside in (((1992,), False), ((1024, 968), True), ((300,) * 6 + (192,), False)):
        for ours, theirs in zip(read(*sizes, beside=beside), narrow, strict=True):
            assert num_differing(ours, theirs) == 0


def test_in_a_copy_of_another_row(target: GpuModel, one_by_one: Any) -> None:
    text, rows = text_of(0, LENGTH), target.start(3, LENGTH)
    target.score(rows, [2], [text[:300]], [1])
    target.commit(rows, [2], [300])
    target.copy_prefix(rows, 2, 0, 270)
    target.truncate(rows, 2, 200)
    logits = target.score(rows, [0, 2], [text[270:280], text[200:210]], [10, 10])
    assert num_differing(logits[0], one_by_one[270:280]) == 0
    assert num_differing(logits[1], one_by_one[200:210]) == 0


@pytest.mark.parametrize("begin", [3, 122, 128, 250, 300])
def test_in_trees(target: GpuModel, one_by_one: Any, begin: int) -> None:
    """Before, at and after the edge of a chunk: nodes 1, 3 and 4 go on as the text does."""
    text, rows = text_of(0, LENGTH), target.start(2, LENGTH)
    target.score(rows, [1], [text[: begin - 1]], [1])
    target.commit(rows, [1], [begin - 1])
    parents = [-1, -1, 0, 1, 3]
    nodes = [17, text[begin], 18, text[begin + 1], text[begin + 2]]
    logits = target.score(rows, [1], [[text[begin - 1], *nodes]], [6], [parents])[0]
    path = [0, 2, 4, 5]
    assert num_differing(logits[path], one_by_one[begin - 1 : begin + 3]) == 0
    wrong = fed(target, {0: [*text[:begin], 17, 18]}, [100])[0][-2:]
    assert num_differing(logits[[1, 3]], wrong) == 0
    target.commit(rows, [1], [path])
    after = target.score(rows, [1], [text[begin + 3 : begin + 6]], [3])[0]
    assert num_differing(after, one_by_one[begin + 3 : begin + 6]) == 0


def test_a_head_of_more_than_2_31_weights() -> None:
    """Places in it are no 32-bit numbers: the last tokens' logits are those of their own rows."""
    hidden, vocab, count = 8192, 262_400, 4
    head = 0.02 * torch.randn(vocab, hidden, dtype=torch.bfloat16, device=DEVICE)
    form = Form(1, 1, 16, attention_scale=1.0, eps=0.0, family=Family(""))
    given = Weights((), head, head, None, form)
    shape = PassShape(count, count, 1, count, 1)
    inputs, scratch = Inputs.empty(shape, head.device), Scratch(given, count)
    inputs.picked.copy_(torch.arange(count))
    scratch.normed.normal_()
    scratch.squares.fill_(16.0)  # of 16 columns each, so that the norm leaves them as they are
    logits = torch.empty((count, vocab), device=DEVICE)
    Kernels(given, shape, inputs, Cache(*[None] * 5), scratch).head(logits)
    expected = scratch.normed.float() @ head[-64:].float().T
    assert (logits[:, -64:] - expected).abs().max() < 0.02


SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"kind": "qwen2"},
    "qwen3": {"kind": "qwen3"},
    "float16": {"dtype": torch.float16},
    **{f"heads of {size}": {"head_dim": size} for size in (80, 96, 128, 256)},
    "heads of 80 with norms": {"kind": "qwen3", "head_dim": 80},
    "tied, with three key heads, and sizes no block divides": {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 459,
        "intermediate_size": 1001,
        "vocab_size": 4999,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_transformers(name: str) -> None:
    how = {"dtype": torch.bfloat16, **SIZES, "num_hidden_layers": 1, **SHAPES[name]}
    model = build(device=DEVICE, **how)
    text = [token % how["vocab_size"] for token in text_of(9, SHORT)]
    logits = fed(GpuModel(model), {0: text}, [1, 5, 20])[0]
    torch.set_float32_matmul_precision("highest")
    assert error(logits, Reference(model).logits(text)) < ROUNDING[how["dtype"]]
