"""Passes of many tokens in the interpreter: the very bits of passes of few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER, chained_dots  # noqa: E402, F401
from tiny import Reference, build, error, stored  # noqa: E402

from forerun.gpu import forward, shapes  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.tiles import TILES, chosen  # noqa: E402

pytestmark = [*IN_INTERPRETER, pytest.mark.usefixtures("chained_dots")]
TEXT = [(7 * place * place + 3) % 40 for place in range(210)]
ASKED = 3
"""Logits of the last pass."""
SHAPES: dict[str, dict[str, Any]] = {
    "two layers": {"num_hidden_layers": 2},
    "qwen2, whose queries, keys and values have biases": {"kind": "qwen2"},
    "qwen3, whose queries and keys have norms": {"kind": "qwen3"},
    "with three key heads, and sizes no block divides": {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 45,
        "intermediate_size": 52,
    },
}


def fed(target: GpuModel, sizes: Sequence[int], beside: Sequence[int] = ()) -> list[Any]:
    """The last logits of a text that is fed in passes of these sizes, and its keys and values.

    beside: a text that is read in the first of these passes."""
    rows, at = target.start(2, 256), 0
    for size in sizes:
        part, asked = TEXT[at : at + size], min(size, ASKED)
        if beside and not at:
            logits = target.score(rows, [1, 0], [list(beside), part], [1, asked])[1:]
            target.commit(rows, [1, 0], [len(beside), size])
        else:
            logits = target.score(rows, [0], [part], [asked])
            target.commit(rows, [0], [size])
        at += size
    return [logits[0, :ASKED], *stored(rows.storage, 0, at)]


def are_equal(first: list[Any], second: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, id=name, marks=[pytest.mark.slow] if name == "two layers" else [])
        for name, how in SHAPES.items()  # every layer is launched alike
    ],
)
def test_a_long_pass_has_the_bits_of_short_ones(how: dict[str, Any]) -> None:
    """Of 210 tokens, over the edge of a chunk of keys and of a tile of tokens."""
    model = build(**how)
    target = GpuModel(model)
    whole = fed(target, [210])
    assert are_equal(whole, fed(target, [128, 79, 3]))
    assert error(whole[0], Reference(model).logits(TEXT)[-ASKED:]) < 0.02


def test_beside_another_text_and_after_a_part() -> None:
    target = GpuModel(build())
    expected = fed(target, [128, 79, 3])
    assert are_equal(fed(target, [207, 3], beside=TEXT[5:60]), expected)
    assert are_equal(fed(target, [30, 180]), expected)


def test_bulk_copies_bring_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor descriptors, which the interpreter reads as a device of compute capability 9 does."""
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48}
    target = GpuModel(build(**sizes, intermediate_size=40))
    expected = fed(target, [210])
    wanted = []

    def operands(*asked: Any) -> dict[str, Any]:
        wanted.append(found := given(*asked))
        return found

    given = forward.operands
    monkeypatch.setattr(forward, "has_bulk_copies", lambda device: True)
    monkeypatch.setattr(forward, "operands", operands)
    assert are_equal(fed(target, [210]), expected)
    assert any(one["BULK"] for one in wanted)


def test_many_logits_of_one_pass() -> None:
    """Of 140 tokens, in tiles of the head."""
    target = GpuModel(build())
    rows = target.start(1, 256)
    logits = target.score(rows, [0], [TEXT[:140]], [140])[0]
    rows = target.start(1, 256)
    for begin in (0, 70):
        part = target.score(rows, [0], [TEXT[begin : begin + 70]], [70])[0]
        assert torch.equal(part, logits[begin : begin + 70])
        target.commit(rows, [0], [70])


def test_every_number_of_tokens_has_a_tile() -> None:
    """One of a pass, padded or not, in each kernel; the first that has room for them."""
    for kernel, table in TILES.items():
        assert list(table) == sorted(table)
        for count in (1, 16, 17, 100, 128, 129, 200, 512, shapes.MOST_TOKENS):
            made = chosen(kernel, count)
            assert made.rows in (16, 32, 64, 128)
            assert made.rows >= min(count, 64)
    assert [shapes.padded_pass(count) for count in (1, 5, 128, 129, 256, 300, 1024)] == [
        1, 8, 128, 256, 256, 384, 1024,
    ]  # fmt: skip
