"""Weights of few bits in the pass: the very bits of the same weights written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

from interpreting import IN_INTERPRETER, chained_dots  # noqa: E402, F401
from packing import FORMATS, packed_model, random_matrix  # noqa: E402
from tiny import Reference, build, error, stored  # noqa: E402
from tiny_gguf import VOCAB_SIZE, Kind, write  # noqa: E402

from forerun.gpu import formats  # noqa: E402
from forerun.gpu.forward import LARGE, RESERVED, SMALL, written_out  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.tiles import BYTES, MOST_PACKED, PAIRED, packed_tile  # noqa: E402
from forerun.loading.packed_gguf import load_gguf  # noqa: E402
from forerun.models import packed  # noqa: E402
from forerun.models.packed import NUMBERS, numbers_of  # noqa: E402

pytestmark = [*IN_INTERPRETER, pytest.mark.usefixtures("chained_dots")]
TEXT = [(7 * place * place + 3) % 40 for place in range(140)]


def fed(target: GpuModel, *sizes: int) -> list[Any]:
    """Logits of a text's last token, and its keys and values."""
    rows, at = target.start(1, 160), 0
    for size in sizes:
        logits = target.score(rows, [0], [TEXT[at : at + size]], [1])[0]
        target.commit(rows, [0], [size])
        at += size
    return [logits.clone(), *stored(rows.storage, 0, at)]


def are_equal(first: list[Any], second: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


LIKE_OTHERS = {
    "int4, groups", "int8, groups", "int4, scales and offsets in multiples",
    "int6, scales in multiples",
}  # fmt: skip
"""One is that with zeros without them; the others are in "several formats in one product"."""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, id=name, marks=[pytest.mark.slow] if name in LIKE_OTHERS else [])
        for name, how in FORMATS.items()
    ],
)
def test_a_pass_has_the_bits_of_the_weights_written_out(how: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model, plain = packed_model(**how)
    whole = fed(GpuModel(plain), 17)
    assert are_equal(whole, fed(GpuModel(model), 16, 1))
    assert error(whole[0], Reference(plain).logits(TEXT[:17])[-1:]) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param(how, id=name) for name, how in FORMATS.items()])
def test_a_pass_of_two_tiles_of_tokens_has_their_bits_too(how: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model, plain = packed_model(**how)
    assert are_equal(fed(GpuModel(model), 17), fed(GpuModel(plain), 17))


def test_passes_of_all_sizes_have_the_same_bits() -> None:
    """Also one whose weights are written out first."""
    torch.manual_seed(1)
    model, plain = packed_model(**FORMATS["float8, a scale for each row"])
    target = GpuModel(model)
    whole = fed(target, 48)
    for sizes in ((6, 6, 36), (47, 1)):
        assert are_equal(whole, fed(target, *sizes))
    assert are_equal(fed(target, 140), fed(GpuModel(plain), 140))


def test_a_gguf_file_runs_in_its_own_bits(tmp_path: Path) -> None:
    path, sizes = tmp_path / "tiny.gguf", {"hidden_size": 256, "intermediate_size": 256}
    exact = build(dtype=torch.float32, vocab_size=VOCAB_SIZE, **sizes)
    write(path, exact, Kind.Q4_K)
    target = GpuModel(load_gguf(path, "cpu")[0])
    whole = fed(target, 6)
    assert are_equal(whole, fed(target, 4, 2))
    assert error(whole[0], Reference(exact).logits(TEXT[:6])[-1:]) < 0.06


@pytest.mark.parametrize("damage", ["scales", "words", "part"])
def test_another_matrix_gives_other_bits(damage: str) -> None:
    """What the tests above compare would differ, were a table or the order of inputs not read."""
    torch.manual_seed(1)
    model, plain = packed_model(**FORMATS["int4, groups with zeros"])
    matrix = model.model.layers[0].mlp.down_proj.matrix
    if damage == "part":
        matrix.words = (
            matrix.words.view(len(matrix.words), -1, 2).flip(2).reshape(matrix.words.shape)
        )
    else:
        getattr(matrix, damage)[5] = 0
    assert not are_equal(fed(GpuModel(model), 6), fed(GpuModel(plain), 6))


def test_rows_of_a_table_may_begin_at_either_half_of_a_pair() -> None:
    torch.manual_seed(1)
    matrix = random_matrix((47, 192), "int4", 64, zeros=True)  # three zeros in a row
    room = torch.empty(47 * 192, dtype=torch.bfloat16)
    assert torch.equal(written_out(matrix, MOST_PACKED + 1, room), matrix.written_out())


@pytest.mark.parametrize(
    "how", [pytest.param(how, id=name) for name, how in FORMATS.items() if "number" in how]
)
def test_a_large_matrix_is_written_out_in_parts(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole blocks of rows, the last one shorter."""
    matrix, counts = random_matrix((160, 128), **how), list[int]()
    whole = matrix.written_out()

    def counted(words: Any, *rest: Any) -> Any:
        counts.append(len(words))
        return numbers_of(words, *rest)

    monkeypatch.setattr(packed, "MOST_AT_ONCE", 70 * 128)
    monkeypatch.setattr(packed, "numbers_of", counted)
    assert torch.equal(matrix.written_out(), whole)
    assert counts == ([64, 64, 32] if how.get("rows") else [70, 70, 20])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_six_bits_in_two_words_are_not_read_as_eight(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device with pairs, where scales have the precision of the model."""
    monkeypatch.setattr(formats, "_has_pairs", lambda device: True)
    matrix = random_matrix((32, 256), "int6", 16, scale=dtype, dtype=dtype)
    assert formats.operand(matrix)["FORMAT"][8] == "plain"


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kernel", ["qkv", "out", "gate_up", "down", "head"])
def test_a_packed_tile_fits_every_device(kernel: str, number: str) -> None:
    """The largest parts that checkpoints make, and as many logits as a pass may have."""
    about, part = NUMBERS[number], 16 if number == "int6" else 128
    for memory in (LARGE - RESERVED, SMALL - RESERVED):
        for count in (1, 16, 64, 128, *([512] if kernel == "head" else [])):
            made = packed_tile(kernel, count, about, part, 20 * part * about.parts, memory)
            columns = made.columns * (2 if kernel in PAIRED else 1)
            step = (columns * about.words + made.rows * about.parts) * part * BYTES
            assert made.stages * step <= memory
