"""Each family of models in the interpreter: the logits of transformers, and the same bits whatever
shares a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from families import FAMILY_SHAPES  # noqa: E402
from interpreting import IN_INTERPRETER, chained_dots  # noqa: E402, F401
from tiny import Reference, build, error  # noqa: E402

from forerun.gpu import attention, forward, shapes  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.models.families import (  # noqa: E402
    FAMILIES,
    LayerForm,
)

pytestmark = [*IN_INTERPRETER, pytest.mark.usefixtures("chained_dots")]
ROUNDING = 0.03
"""Of float16 logits, as a share of their spread; what is left out moves them by much more."""
TEXT = [(7 * place * place + 3) % 40 for place in range(24)]
LAST = 8
"""Tokens whose logits are compared, past a window and the edge of a chunk."""
GROUPINGS: dict[str, Sequence[int]] = {
    "one by one": [1] * 24,
    "in 6": [6] * 4,
    "in 16": [16, 8],
}
CHANGES: dict[str, dict[str, Any]] = {
    "sliding windows": {"layers": (LayerForm(), LayerForm())},
    "layers without rotary embedding": {"layers": (LayerForm(), LayerForm())},
    "several rotary tables": {"layers": (LayerForm(9), LayerForm())},
    "heads that are turned in part": {"rotary_size": None},
    "norms of heads": {"head_norms": ""},
    "norms of all heads together": {"head_norms": "head"},
    "GELU": {"activation": "silu"},
    "a scaled embedding": {"embedding_scale": 1.0},
    "scaled sums": {"residual_scale": 1.0, "logits_scale": 1.0},
    "capped attention": {"attention_cap": 0.0},
    "capped logits": {"logits_cap": 0.0},
}
"""What a form says wrongly of a model that has the feature."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 keys in place of 128."""
    monkeypatch.setattr(shapes, "CHUNK", 16)
    monkeypatch.setattr(attention, "BLOCK_KEYS", 16)


def fed(target: GpuModel, sizes: Sequence[int], beside: Sequence[int] = ()) -> Any:
    """The last logits of the text, fed in passes of these sizes, the last beside another text."""
    rows, at, logits = target.start(2, 64), 0, []
    for size in sizes:
        part, asked = TEXT[at : at + size], min(size, LAST)
        if beside and at + size == len(TEXT):
            scored = target.score(rows, [1, 0], [list(beside), part], [1, asked])[1]
        else:
            scored = target.score(rows, [0], [part], [asked])[0]
        logits.append(scored[:asked].clone())
        target.commit(rows, [0], [size])
        at += size
    return torch.cat(logits)[-LAST:]


@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_a_family_scores_like_transformers_with_the_same_bits_in_every_company(name: str) -> None:
    model = build(**FAMILY_SHAPES[name])
    assert type(model).__name__ in FAMILIES
    target = GpuModel(model)
    whole = fed(target, [len(TEXT)])
    assert error(whole, Reference(model).logits(TEXT)[-LAST:]) < ROUNDING
    assert torch.equal(fed(target, [16, 6, 1, 1], beside=TEXT[5:20]), whole)


def test_a_token_past_the_pages_of_the_pool_is_not_turned() -> None:
    """A draft model may have fewer pages than the text of a lane in which it does not draft; its
    tables of angles end with them."""
    storage = GpuModel(build("qwen3")).on_trial(4).start(1).storage
    shape, scratch = shapes.PassShape(2, 0, 1, 2, 1), storage.scratch
    inputs = shapes.Inputs.empty(shape, torch.device("cpu"))
    inputs.rows.fill_(0)
    inputs.slots.copy_(torch.tensor([0, 4 * shapes.CHUNK]))
    inputs.positions.copy_(torch.tensor([0, 4 * shapes.CHUNK - 1]))  # in the table, for this test
    with torch.inference_mode():
        scratch.queries.fill_(7)
        kernels = forward.Kernels(
            storage.weights, shape, inputs, storage.cache, scratch, early=False
        )
        kernels.project(0, scratch.x.zero_(), scratch.no_squares)
    assert not (scratch.queries[0] == 7).any()
    assert (scratch.queries[1] == 7).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", GROUPINGS.values(), ids=GROUPINGS)
@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_in_steps(name: str, sizes: Sequence[int]) -> None:
    target = GpuModel(build(**FAMILY_SHAPES[name]))
    assert torch.equal(fed(target, sizes), fed(target, [len(TEXT)]))


@pytest.mark.slow
@pytest.mark.parametrize("feature", CHANGES)
def test_what_a_form_says_wrongly_shows(feature: str) -> None:
    """So the comparison with transformers, here and at loading, rests on more than names."""
    shown = 0
    for how in FAMILY_SHAPES.values():
        model = build(**how)
        target = GpuModel(model)
        weights = target._weights
        if feature in weights.form.features and len(weights.layers) <= 2:
            changed = replace(weights.form, **CHANGES[feature])
            target._weights = weights._replace(form=changed)
            wrong = fed(target, [len(TEXT)])
            shown += 1
            assert error(wrong, Reference(model).logits(TEXT)[-LAST:]) > ROUNDING
    assert shown > 0


def test_every_family_is_tested() -> None:
    tested = {type(build(**how)).__name__ for how in FAMILY_SHAPES.values()}
    assert {*FAMILIES} <= tested | {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def test_equal_scores_go_to_the_lowest_numbers_and_padding_to_nobody() -> None:
    model = build(**FAMILY_SHAPES[next(n for n in FAMILY_SHAPES if "moe" in n)])
    with torch.no_grad():
        model.model.layers[0].mlp.gate.weight.zero_()
    target = GpuModel(model)
    rows = target.start(1, 64)
    target.score(rows, [0], [TEXT[:3]], [1])  # padded to four
    found = rows.storage.scratch.experts
    assert found.chosen[:12].tolist() == [0, 1, 2] * 3 + [-1] * 3
    assert torch.allclose(found.weights[:9], torch.tensor(1 / 3))
    assert found.experts[:4].tolist()[:3] == [0, 1, 2]
    assert found.done.tolist() == [0] * len(found.done)
