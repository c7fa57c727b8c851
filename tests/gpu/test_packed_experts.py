"""Experts with weights of few bits in the pass: the very bits of the same weights written out, in
every company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from families import WINDOWS  # noqa: E402
from interpreting import IN_INTERPRETER, chained_dots  # noqa: E402, F401
from packing import FORMATS, packed_model, random_matrix  # noqa: E402
from tiny import Reference, error  # noqa: E402

from forerun.gpu import experts  # noqa: E402
from forerun.gpu.forward import LARGE, RESERVED, SMALL  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.tiles import BYTES  # noqa: E402
from forerun.gpu.weights import ExpertWeights, take, unfit  # noqa: E402
from forerun.models.families import Experts  # noqa: E402
from forerun.models.packed import NUMBERS  # noqa: E402

pytestmark = [*IN_INTERPRETER, pytest.mark.usefixtures("chained_dots")]
ROUNDING = 0.06  # of bfloat16 logits, as a share of their spread
TEXT = [(7 * place * place + 3) % 40 for place in range(40)]
BLOCKS = {"number": "e4m3", "group": 128, "rows": 128, "scale": torch.float32}
STORED = ("float8, a scale for each row", "int4, groups", "int4, groups with zeros", "int8, groups",
          "float4, groups")  # fmt: skip
SERVED = {name: FORMATS[name] for name in STORED} | {"float8, blocks of 128 x 128": BLOCKS}
"""In which checkpoints store experts."""
QWEN: dict[str, Any] = {
    "kind": "qwen3_moe", "hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 64,
    "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2,
}  # fmt: skip
GPT_OSS: dict[str, Any] = WINDOWS | {
    "kind": "gpt_oss", "hidden_size": 128, "intermediate_size": 128, "head_dim": 64,
    "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1,
    "layer_types": ["sliding_attention"],
}  # fmt: skip
MXFP4 = {"number": "e2m1", "group": 32}
GROUPINGS = [
    pytest.param([[6] * 3], id="in 6"),
    pytest.param([[16, 1, 1], [1] * 18], id="in 16 and one by one", marks=pytest.mark.slow),
]


def fed(target: GpuModel, sizes: Sequence[int], beside: Sequence[int] = ()) -> Any:
    """The logits of a text's last token, fed in passes of these sizes, the last beside another."""
    rows, at = target.start(2, 64), 0
    for size in sizes:
        part = TEXT[at : at + size]
        if beside and at + size == sum(sizes):
            logits = target.score(rows, [1, 0], [list(beside), part], [1, 1])[1]
        else:
            logits = target.score(rows, [0], [part], [1])[0]
        target.commit(rows, [0], [size])
        at += size
    return logits[:1].clone()


LIKE_OTHERS = {"int4, groups", "int8, groups", "float4, groups"}
"""Formats whose parts others have too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_OTHERS else [])
        for name in (*SERVED, "gpt-oss")
    ],
)
def test_a_pass_has_the_bits_of_the_experts_written_out(name: str) -> None:
    sizes, how = (GPT_OSS, MXFP4) if name == "gpt-oss" else (QWEN, SERVED[name])
    torch.manual_seed(1)
    model, plain = packed_model(sizes, **how)
    whole = fed(GpuModel(model), [9])
    assert torch.equal(whole, fed(GpuModel(plain), [9]))
    assert error(whole, Reference(plain).logits(TEXT[:9])[-1:]) < ROUNDING


@pytest.mark.parametrize("groupings", GROUPINGS)
@pytest.mark.parametrize(
    ("sizes", "how"), [(GPT_OSS, MXFP4), (QWEN, BLOCKS)], ids=["gpt-oss", "qwen3-moe"]
)
def test_passes_of_all_sizes_have_the_same_bits(
    sizes: dict[str, Any],
    how: dict[str, Any],
    groupings: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those whose experts have tiles of many places: here from 17 tokens on, not 129."""
    monkeypatch.setattr(experts, "FEW_TOKENS", 16)
    torch.manual_seed(1)
    target = GpuModel(packed_model(sizes, **how)[0])
    whole = fed(target, [18])
    for grouping in groupings:
        assert torch.equal(fed(target, grouping), whole)
    assert torch.equal(fed(target, [16, 2], beside=TEXT[5:28]), whole)


@pytest.mark.parametrize("damage", ["scales", "words"])
def test_another_expert_gives_other_bits(damage: str) -> None:
    """What the tests above compare would differ, were the table of an expert not its own."""
    torch.manual_seed(1)
    model, plain = packed_model(QWEN, **BLOCKS)
    matrix = model.model.layers[0].mlp.experts.down_proj.matrix
    table = getattr(matrix, damage)
    table.copy_(table.roll(len(table) // 4, 0))
    assert not torch.equal(fed(GpuModel(model), [9]), fed(GpuModel(plain), [9]))


def test_transformers_computes_the_packed_model_too() -> None:
    for sizes in (QWEN, GPT_OSS):
        torch.manual_seed(1)
        model, plain = packed_model(sizes, **MXFP4)
        plain.set_experts_implementation("eager")
        assert not unfit(model)
        ids = torch.tensor([TEXT[:9]])
        assert torch.equal(model(ids).logits, plain(ids).logits)


def test_bytes_are_those_of_the_experts_of_one_token() -> None:
    """Half of them, at 4 bits and a scale of 16 for 32 inputs, and a router of 16 bits."""
    model, plain = packed_model(QWEN, **MXFP4)
    packed, whole = (take(each).layers[0].experts for each in (model, plain))
    router = 2 * 4 * 128
    assert whole.num_bytes == 2 * 2 * (3 * 128 * 128) + router
    assert packed.num_bytes == (whole.num_bytes - router) * 4.5 / 16 + router


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("count", [1, experts.FEW_TOKENS, experts.FEW_TOKENS + 1])
def test_tiles_of_experts_fit_every_device(number: str, count: int) -> None:
    """Both products have as many places, as pairs are put into places once."""
    about, part = NUMBERS[number], 16 if number == "int6" else 128
    matrix = random_matrix((8, about.parts * part), number, part)
    w = ExpertWeights(Experts(4, 2, True, False), None, None, matrix, None, matrix, None)
    for memory in (LARGE - RESERVED, SMALL - RESERVED):
        opening, closing = experts.tiles_of(w, count, memory)
        assert opening.rows == closing.rows
        for made, width in ((opening, 2), (closing, 1)):
            step = (made.columns * width * about.words + made.rows * about.parts) * part * BYTES
            assert made.stages * step <= memory
