"""Small random models whose weights have few bits, beside the same weights written out."""

from __future__ import annotations

import copy
from typing import Any

import torch

from forerun.models.packed import NUMBERS, Packed, PackedLinear, PackedStack, packed

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 64}
FORMATS: dict[str, dict[str, Any]] = {
    "float8, a scale for each row": {"number": "e4m3", "group": None},
    "float8, a float32 scale for each block": {
        "number": "e4m3", "group": 32, "rows": 32, "scale": torch.float32
    },
    "int4, groups": {"number": "int4", "group": 32},
    "int4, groups with zeros": {"number": "int4", "group": 16, "zeros": True},
    "int4, groups with offsets": {"number": "int4", "group": 32, "offsets": True},
    "int8, groups": {"number": "int8", "group": 32, "scale": torch.float16},
    "int6, groups": {"number": "int6", "group": 16, "scale": torch.float16},
    "int4, scales and offsets in multiples": {"number": "int4", "group": 32, "whole": 128},
    "int6, scales in multiples": {"number": "int6", "group": 16, "whole": 128, "least": False},
    "several formats in one product": {"mixed": {
        "v_proj": {"number": "int6", "group": 16, "whole": 128, "least": False},
        "up_proj": {"number": "int8", "group": 32},
        "": {"number": "int4", "group": 32, "whole": 128},
    }},
    "float4, groups": {"number": "e2m1", "group": 32, "scale": torch.float32},
}  # fmt: skip


def random_matrix(
    shape: tuple[int, int], number: str, group: int | None, rows: int = 1, scale: Any = None,
    zeros: bool = False, offsets: bool = False, whole: int = 0, least: bool = True,
    dtype: Any = torch.bfloat16,
) -> Packed:  # fmt: skip
    """A matrix of random numbers with random scales."""
    num_rows, depth = shape
    about = NUMBERS[number]
    numbers = torch.randint(0, 1 << about.bits, shape, dtype=torch.uint8)
    if number == "e4m3":
        numbers[numbers & 0x7F == 0x7F] = 0  # NaN
    table = num_rows // rows, depth // (group or depth)
    size = 0.3 / depth**0.5 / {"e4m3": 60, "e2m1": 3, "int4": 5, "int6": 20, "int8": 70}[number]
    scales = (size * (0.5 + torch.rand(table))).to(scale or dtype)
    middles = torch.randint(0, 16, table, dtype=torch.uint8) if zeros else None
    added = (-8 * size * torch.rand(table)).to(scales.dtype) if offsets else None
    if not whole:
        return packed(numbers, scales, number, dtype, zeros=middles, offsets=added)
    few = num_rows, depth // whole
    coarse = (size / 32 * (0.5 + torch.rand(few))).half()
    tables = {"whole_scales": coarse if least else coarse.float()}  # as of Q4_K and Q6_K
    if least:
        tables["offsets"] = torch.randint(0, 64, table, dtype=torch.uint8)
        tables["whole_offsets"] = (size / 4 * (0.5 + torch.rand(few))).half()
    multiples = torch.randint(-64 * (not least), 64, table).to(torch.uint8 if least else torch.int8)
    return packed(numbers, multiples, number, dtype, **tables)


def packed_model(
    sizes: dict[str, Any] | None = None,
    device: str = "cpu",
    dtype: Any = torch.bfloat16,
    **how: Any,
) -> tuple[Any, Any]:
    """A model of packed layers, and the same with its weights written out."""
    from tiny import build  # transformers, which matrices alone do without

    sizes = SIZES if sizes is None else sizes
    model = build(dtype=dtype, device=device, **sizes)
    plain = copy.deepcopy(model)
    for layer, other in zip(model.model.layers, plain.model.layers, strict=True):
        for part in ("self_attn", "mlp"):
            owner = getattr(layer, part)
            for name, module in list(owner.named_children()):
                if isinstance(module, torch.nn.Linear):
                    kind = how if "mixed" not in how else how["mixed"].get(name, how["mixed"][""])
                    matrix = random_matrix(tuple(module.weight.shape), **kind, dtype=dtype).to(
                        device
                    )
                    setattr(owner, name, PackedLinear(matrix, module.bias))
                    twin = getattr(getattr(other, part), name)
                    twin.weight.data = matrix.written_out()
        if hasattr(layer.mlp, "experts"):
            for name in ("gate_up_proj", "down_proj"):
                _pack_experts(layer.mlp.experts, other.mlp.experts, name, how, dtype, device)
    model.set_experts_implementation("eager")
    return model, plain


def _pack_experts(
    owner: Any, other: Any, name: str, how: dict[str, Any], dtype: Any, device: str
) -> None:  # fmt: skip
    weights, is_turned = getattr(owner, name), type(owner).__name__ == "GptOssExperts"
    count, rows, depth = weights.mT.shape if is_turned else weights.shape
    matrix = random_matrix((count * rows, depth), **how, dtype=dtype).to(device)
    delattr(owner, name)
    setattr(owner, name, PackedStack(matrix, count, is_turned))
    whole = matrix.written_out().view(count, rows, depth)
    getattr(other, name).data = whole.mT.contiguous() if is_turned else whole
