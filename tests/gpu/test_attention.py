"""Attention in chunks of a text: logits in the interpreter, against transformers in float32."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from families import FAMILY_SHAPES  # noqa: E402
from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import Reference, build, error  # noqa: E402

from forerun.gpu import attention, shapes  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = IN_INTERPRETER
ROUNDING = 0.01
"""Of float16 logits at most; a chunk too many or too few moves them by their whole spread."""
TEXT = [(7 * place * place + 3) % 40 for place in range(300)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 keys in place of 128."""
    monkeypatch.setattr(shapes, "CHUNK", 16)
    monkeypatch.setattr(attention, "BLOCK_KEYS", 16)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_add_up() -> None:
    """A text of three chunks, and a node of a tree past two."""
    model = build()
    target, reference, text = GpuModel(model), Reference(model), TEXT[:36]
    rows = target.start(1, 64)
    logits = target.score(rows, [0], [text], [4])[0]
    assert error(logits, reference.logits(text)[-4:]) < ROUNDING
    target.commit(rows, [0], [34])
    nodes = target.score(rows, [0], [[5, 6, 7]], [3], [[-1, -1, 1]])[0]
    assert error(nodes[:1], reference.logits([*text[:34], 5])[-1:]) < ROUNDING
    assert error(nodes[1:], reference.logits([*text[:34], 6, 7])[-2:]) < ROUNDING


@pytest.mark.usefixtures("small_chunks")
def test_a_text_of_fewer_chunks_shares_a_pass() -> None:
    """Three chunks beside four: the one that it does not have neither writes nor counts.  Both
    layers use the same counters, so one too many shows in the second."""
    model = build(num_hidden_layers=2)
    target, reference = GpuModel(model), Reference(model)
    texts, rows = [TEXT[10:50], TEXT[:53]], target.start(2, 64)
    target.score(rows, [0, 1], [text[:-1] for text in texts], [1, 1])
    target.commit(rows, [0, 1], [len(text) - 1 for text in texts])
    logits = target.score(rows, [0, 1], [text[-1:] for text in texts], [1, 1])
    for ours, text in zip(logits, texts, strict=True):
        assert error(ours, reference.logits(text)[-1:]) < ROUNDING


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", ["qwen3", "gpt-oss, with sinks and biases"])
def test_many_chunks_are_added_up_apart(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With the very bits of the program that finishes last, where a text of one chunk stands beside
    texts of seven and eight, and two or four are asked for together."""

    def logits() -> list[Any]:
        target, texts = GpuModel(model), [TEXT[:9], TEXT[:100], TEXT[5:120]]
        rows = target.start(3, 128)
        target.score(rows, [0, 1, 2], [text[:-3] for text in texts], [1] * 3)
        target.commit(rows, [0, 1, 2], [len(text) - 3 for text in texts])
        return list(target.score(rows, [0, 1, 2], [text[-3:] for text in texts], [3] * 3))

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return kernel[grid]

    kernel, grids = attention.add_chunks, list[tuple[int, ...]]()
    monkeypatch.setattr(attention, "add_chunks", Counted())
    model = build(**FAMILY_SHAPES.get(name, {"kind": name}))
    by_the_last = logits()
    assert not grids
    monkeypatch.setattr(attention, "ADDED_LATER", 4)
    for ahead in (2, 4):
        monkeypatch.setattr(attention, "AHEAD", ahead)
        for before, after in zip(by_the_last, logits(), strict=True):
            assert torch.equal(before, after)
    assert grids


@pytest.mark.slow
def test_a_long_text_is_cut_into_passes_and_chunks() -> None:
    model = build()
    target, reference = GpuModel(model), Reference(model)
    rows = target.start(1, 320)
    logits = target.score(rows, [0], [TEXT], [70])[0]  # more than one pass gives
    assert error(logits, reference.logits(TEXT)[-70:]) < ROUNDING
    target.commit(rows, [0], [255])
    after = target.score(rows, [0], [[1, 2]], [2])[0]
    assert error(after, reference.logits([*TEXT[:255], 1, 2])[-2:]) < ROUNDING
