"""GGUF files whose matrices stay in their own bits, as the GPU pass has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

import numpy as np  # noqa: E402
from gguf import GGML_QUANT_SIZES  # noqa: E402
from test_gguf import WIDE, tiny  # noqa: E402
from tiny_gguf import Kind, write  # noqa: E402

from forerun.base.errors import InputError  # noqa: E402
from forerun.gguf.file import read_gguf  # noqa: E402
from forerun.gguf.model import read_model  # noqa: E402
from forerun.gpu.pool import DeviceMemoryError  # noqa: E402
from forerun.loading import packed_gguf  # noqa: E402
from forerun.loading.packed_gguf import TYPES, load_gguf  # noqa: E402
from forerun.models.packed import PackedLinear, bytes_of, packed_parts  # noqa: E402

KINDS = (*TYPES, "Q5_K", "BF16")
"""The types that stay in their own bits, and two that become 16 bits."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_every_matrix_is_the_one_of_the_file(kind: str, architecture: str, tmp_path: Path) -> None:
    """Rows of the first have the order of llama.cpp, layers of the second have biases."""
    exact, path = tiny(architecture, **WIDE), tmp_path / "tiny.gguf"
    write(path, exact, Kind[kind])
    model, tokenizer = load_gguf(path, "cpu")
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    matrices = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert len(matrices) == (8 if kind in TYPES else 0)
    for name, weight in exact.state_dict().items():
        owner, _, own = name.rpartition(".")
        module = model.get_submodule(owner)
        assert torch.equal(getattr(module, own), weight.bfloat16()), name
        if isinstance(module, PackedLinear) and own == "weight":
            assert bytes_of(module.matrix) <= 1.05 * path_bytes(kind, weight)
    ids = torch.tensor([[2, 3, 4]])
    plain = exact.bfloat16()
    plain.model.rotary_emb = model.model.rotary_emb  # in float32
    assert torch.equal(model(ids).logits, plain(ids).logits)


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write(path, tiny("llama", **WIDE), Kind.Q4_K)
    tensor = read_gguf(path).tensors["blk.0.ffn_up.weight"]
    data = bytearray(path.read_bytes())
    data[tensor.begin : tensor.begin + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"not finite.*blk\.0\.ffn_up\.weight"):
        load_gguf(path, "cpu")


def test_how_much_memory_is_missing_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights count in the bits of the file, the rest in 16."""
    path = tmp_path / "tiny.gguf"
    for tied in (False, True):
        write(path, tiny("llama", tie_word_embeddings=tied, **WIDE), Kind.Q4_K)
        model, _ = load_gguf(path, "cpu")
        needed = sum(map(bytes_of, [*model.parameters(), *packed_parts(model)]))
        assert needed / 1.05 < packed_gguf._num_bytes(read_model(path)) <= needed
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (needed, 2 * needed))
    with pytest.raises(DeviceMemoryError, match="no room for the weights"):
        load_gguf(path, "cuda")


def path_bytes(kind: str, weight: Any) -> int:
    block, size = GGML_QUANT_SIZES[Kind[kind]]
    return int(weight.numel() // block * size)
