"""Loads GGUF files for the GPU pass: matrices keep the bits of the file, everything else has 16
bits.

The blocks of a file (see `forerun.lean.blocks`) are split into numbers and tables on the device,
one matrix at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch

from forerun.gguf.file import Tensor
from forerun.gguf.model import GgufModel, damaged, read_model
from forerun.lean.blocks import Raw
from forerun.loading.packed_checkpoint import check_room, dtype_of
from forerun.models.packed import Packed, PackedLinear, packed

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Units = Any  # (N, units of a row, bytes of a unit), uint8


def load_gguf(path: Path, device: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Load the model in a file to a device; returns it with its tokenizer.

    dtype: of everything that does not have few bits; None: bfloat16.
    """
    source, dtype = read_model(path), dtype_of(dtype)
    model, place = source.skeleton, torch.device(device)
    if place.type == "cuda":
        check_room(path, _num_bytes(source), place)
    for name, tensor in source.tensors.items():
        owner, _, own = name.rpartition(".")
        module = model.get_submodule(owner)
        if isinstance(module, torch.nn.Linear) and tensor.kind.name in TYPES:
            matrix = _matrix(source, name, tensor, place, dtype)
            bias = module.bias  # which another tensor fills
            grandparent, _, leaf = owner.rpartition(".")
            setattr(model.get_submodule(grandparent), leaf, PackedLinear(matrix, bias))
        else:
            values = torch.from_numpy(source.values(name).copy()).to(place, dtype)
            setattr(module, own, torch.nn.Parameter(values, requires_grad=False))
    embedding = model.get_input_embeddings()
    if HEAD not in source.tensors:
        tensor = source.tensors[EMBEDDING]
        if tensor.kind.name in TYPES:  # read in every pass, in its own bits
            model.lm_head = PackedLinear(_matrix(source, EMBEDDING, tensor, place, dtype))
        else:
            model.lm_head.weight = embedding.weight
    if hasattr(embedding, "scalar_embed_scale"):  # a number that files do not have
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale, device=place)
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=source.config).to(place)
    model.config.dtype = dtype
    return model.eval(), source.tokenizer


def _num_bytes(source: GgufModel) -> int:
    """The bytes that the weights of a file take on a device."""
    total = 0
    for name, tensor in source.tensors.items():
        module = source.skeleton.get_submodule(name.rpartition(".")[0])
        is_packed, wide = tensor.kind.name in TYPES, 2 * prod(tensor.shape)
        total += tensor.num_bytes if is_packed and isinstance(module, torch.nn.Linear) else wide
        if name == EMBEDDING and is_packed and HEAD not in source.tensors:
            total += tensor.num_bytes  # once more, as the head
    return total


def _matrix(source: GgufModel, name: str, tensor: Tensor, device: Any, dtype: Any) -> Packed:
    kind, shape = tensor.kind.name, tensor.shape
    heads = source.num_turned_heads(name)
    raw = Raw(name, kind, (shape[0], shape[1]), str(tensor.path), tensor.begin, heads)
    found = torch.from_numpy(raw.read(0, shape[0])).to(device)
    size = tensor.num_bytes // shape[0]
    per_row = size // BYTES[kind]
    made = TYPES[kind](found.view(shape[0], per_row, BYTES[kind]), dtype)
    if not all(bool(table.isfinite().all()) for table in made.tables[1:]):  # all but the words
        raise damaged(tensor)
    return made


def _halves(units: Units, at: int) -> Any:
    """The float16 numbers (N, units) that begin at byte `at` of every unit."""
    return units[:, :, at : at + 2].contiguous().view(torch.float16)[:, :, 0]


def _nibbles(units: Units) -> Any:
    """All low four bits and then all high four bits of bytes (N, units, B), as (N, units, 2 B)."""
    return torch.cat([units & 0xF, units >> 4], 2)


def _rows(numbers: Any) -> Any:
    return numbers.reshape(len(numbers), -1).contiguous()


def _q4_0(units: Units, dtype: Any) -> Packed:
    return packed(_rows(_nibbles(units[:, :, 2:])), _halves(units, 0), "int4", dtype)


def _q4_1(units: Units, dtype: Any) -> Packed:
    numbers = _rows(_nibbles(units[:, :, 4:]))
    return packed(numbers, _halves(units, 0), "int4", dtype, offsets=_halves(units, 2))


def _q8_0(units: Units, dtype: Any) -> Packed:
    return packed(_rows(units[:, :, 2:] ^ 0x80), _halves(units, 0), "int8", dtype)


def _q4_k(units: Units, dtype: Any) -> Packed:
    low, middle, high = units[:, :, 4:8], units[:, :, 8:12], units[:, :, 12:16]
    scales = torch.cat([low & 63, high & 15 | low >> 6 << 4], 2)
    offsets = torch.cat([middle & 63, high >> 4 | middle >> 6 << 4], 2)
    digits = units[:, :, 16:].reshape(len(units), -1, 32)  # of two groups each
    return packed(
        _rows(_nibbles(digits)), _rows(scales), "int4", dtype, offsets=_rows(offsets),
        whole_scales=_halves(units, 0), whole_offsets=_halves(units, 2),
    )  # fmt: skip


def _q6_k(units: Units, dtype: Any) -> Packed:
    four = _nibbles(units[:, :, :128].reshape(len(units), -1, 64))  # of half a unit
    high = units[:, :, 128:192].reshape(len(units), -1, 32)
    two = torch.cat([high >> 2 * i & 3 for i in range(4)], 2)
    scales = _rows(units[:, :, 192:208]).view(torch.int8)
    numbers = _rows(four | two << 4)
    return packed(numbers, scales, "int6", dtype, whole_scales=_halves(units, 208).float())


TYPES: dict[str, Callable[[Units, Any], Packed]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k,
}  # fmt: skip
"""The types of matrices that keep their few bits, each with the function that reads it; matrices of
other types are expanded to 16 bits."""
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34, "Q4_K": 144, "Q6_K": 210}
"""The number of bytes in a unit of each type."""
