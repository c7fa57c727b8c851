"""Keys and values of 8 bits in the interpreter: the logits of a model whose keys and values are
rounded, and the same bits whatever shares a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("transformers")

import triton.language as tl  # noqa: E402
from eight_bits import RoundedReference, rounded  # noqa: E402
from families import FAMILY_SHAPES, WINDOWS  # noqa: E402
from interpreting import IN_INTERPRETER, chained_dots  # noqa: E402, F401
from tiny import Reference, build, error, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.gpu import shapes  # noqa: E402
from forerun.gpu.kernels.layers import narrowed  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402

pytestmark = [*IN_INTERPRETER, pytest.mark.usefixtures("chained_dots")]
TEXT = [(7 * place * place + 3) % 40 for place in range(36)]
LAST = 4
SHAPES = {
    "past a window": {"kind": "mistral", "sliding_window": 9},
    "norms, and heads turned apart": {"kind": "qwen3"},
    "several query heads, of 48": {
        "num_attention_heads": 3, "hidden_size": 48, "head_dim": 48, "dtype": torch.bfloat16,
    },
    "windows in some layers": {"kind": "gemma3_text", **WINDOWS},
    "sinks": FAMILY_SHAPES["gpt-oss, with sinks and biases"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 keys in place of 128."""
    monkeypatch.setattr(shapes, "CHUNK", 16)


@triton.jit
def _narrow(values, cache, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(cache + at, narrowed(tl.load(values + at), cache))


def test_the_nearest_number_is_kept() -> None:
    """Ties, numbers near zero, and what is too large, as torch rounds them."""
    exact = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (exact[1:] + exact[:-1]) / 2
    around = torch.cat([middles, middles * (1 + 2**-20), middles * (1 - 2**-20), exact])
    values = torch.cat([around, -around, torch.tensor([1e9, -1e9, torch.inf, -0.0])])
    size = triton.next_power_of_2(len(values))
    values = torch.nn.functional.pad(values, (0, size - len(values)))
    bits = torch.zeros(size, dtype=torch.uint8)
    _narrow[(1,)](values, bits, SIZE=size)
    assert torch.equal(bits.view(torch.float8_e4m3fn).float(), rounded(values))


def fed(target: GpuModel, sizes: Sequence[int], beside: Sequence[int] = ()) -> Any:
    """The last logits of the text, fed in passes of these sizes, the last beside another text."""
    rows, at, logits = target.start(2, 64), 0, []
    for size in sizes:
        part, asked = TEXT[at : at + size], min(size, LAST)
        others = [1] if beside and at + size == len(TEXT) else []
        feeds = [list(beside)] * len(others) + [part]
        scored = target.score(rows, [*others, 0], feeds, [1] * len(others) + [asked])[-1]
        logits.append(scored[:asked].clone())
        target.commit(rows, [0], [size])
        at += size
    return torch.cat(logits)[-LAST:]


@pytest.mark.parametrize(
    "name", [*SHAPES][:3] + [pytest.param(name, marks=pytest.mark.slow) for name in [*SHAPES][3:]]
)
def test_logits_are_those_of_a_model_with_rounded_keys(name: str) -> None:
    """And not those of the model itself: rounding is told apart from a wrong place or mask."""
    model = build(**SHAPES[name])
    target = GpuModel(model, kv_dtype="float8")
    whole = fed(target, [len(TEXT)])
    exact, plain = (kind(model).logits(TEXT)[-LAST:] for kind in (RoundedReference, Reference))
    assert error(whole, exact) < 0.05
    assert error(whole, plain) > 2 * error(whole, exact)
    assert torch.equal(fed(target, [27, 6, 1, 1, 1], beside=TEXT[5:23]), whole)


def test_nodes_of_a_tree_have_the_bits_of_their_texts_and_move() -> None:
    """Past the edge of a chunk, where the slots of a branch lie in both halves of a page."""
    target = GpuModel(build(), kv_dtype="float8")
    rows = target.start(1, 64)
    target.score(rows, [0], [TEXT[:21]], [1])
    target.commit(rows, [0], [21])
    line, parents = [TEXT[21], 17, TEXT[22], 18, TEXT[23]], [-1, -1, 0, 1]
    nodes = target.score(rows, [0], [line], [5], [parents])[0].clone()
    text = target.score(target.start(1, 64), [0], [TEXT[:24]], [3])[0]
    assert torch.equal(nodes[[0, 2, 4]], text)
    target.commit(rows, [0], [[0, 2, 4]])
    after = target.score(rows, [0], [TEXT[24:26]], [2])[0].clone()
    assert torch.equal(after, target.score(target.start(1, 64), [0], [TEXT[:26]], [2])[0])


def test_a_text_is_the_same_with_and_without_a_draft() -> None:
    model = build()
    target, draft = GpuModel(model, kv_dtype="float8"), GpuModel(noisy_copy(model, 0.1))
    how: dict[str, Any] = {"max_new_tokens": 3, "sampling": fr.Sampling(seed=3)}
    plain = fr.generate(target, TEXT[:14], drafter=None, **how)
    how |= {"drafter": fr.drafters.Model(draft), "draft_length": 2}
    drafted = fr.generate(target, TEXT[:14], **how)
    assert plain.tokens == drafted.tokens
    assert drafted.stats.drafted > 0


def test_twice_as_many_tokens_fit_and_the_pass_says_that_it_is_lossy() -> None:
    model = build()
    plain = GpuModel(model)._pass.pool
    target = GpuModel(model, kv_dtype="float8")
    assert 2 * target._pass.pool.page_bytes == plain.page_bytes
    assert "keys and values rounded to float8 (lossy)" in target.pass_name
    text = TEXT[:20]
    assert torch.equal(target.fresh(text), target.score(target.start(1), [0], [text], [1])[0, 0])
    assert target.on_trial(is_lossless=True).kv_dtype is None
