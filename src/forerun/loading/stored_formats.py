"""The few-bit formats in which checkpoints store matrices, identified by the fields of config.json.

Each matrix is read into `Packed` on the device, one at a time. Only weights are read: if a
checkpoint asks for few-bit activations too, they are computed in the model's precision instead,
which is closer to the original model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.models.packed import NUMBERS, Packed, packed, part_of

SCALES_BELOW = {"e4m3": 128.0, "e2m1": 2.0}
"""The bounds of scales for small floats. A larger scale would overflow where the kernel multiplies
it by a power of two."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The order in which the numbers of neighbouring columns are stored in a word of AWQ."""

FORMATS = {
    "fp8": "FP8 (e4m3), a scale for the matrix, each row, or each block",
    "compressed-tensors float-quantized": "FP8 (e4m3), a scale for the matrix, each row, or block",
    "compressed-tensors int-quantized": "8-bit integers, a scale for each row or group",
    "compressed-tensors pack-quantized": "4- and 8-bit integers with groups, zeros or none",
    "compressed-tensors mxfp4-pack-quantized": "FP4 (e2m1) in groups of 32 with powers of two",
    "mxfp4": "experts in FP4 (e2m1) in groups of 32 with powers of two (gpt-oss)",
    "awq": "4-bit integers with groups and zeros",
    "gptq": "4- and 8-bit integers with groups and zeros, in the order of the inputs",
}
"""The supported formats: each name in quantization_config, with a description for people."""


Block = tuple[int | None, int | None]
"""The number of rows and of inputs that share a scale; None where it is not known."""


class Stored(NamedTuple):
    """One matrix of a checkpoint."""

    name: str  # of the linear layer
    shape: tuple[int, int]  # (out, in)
    dtype: Any  # of the model
    find: Callable[[str], Any]  # a tensor by the rest of its name, on the device; None if absent
    block: Block = (None, None)  # rows and inputs that share a scale, if config.json says so

    def tensor(self, part: str, *kinds: Any) -> Any:
        """A tensor that must exist and have one of these dtypes."""
        found = self.find(part)
        if found is None:
            wrong = f"The weights of {self.name} lack {part!r}, which their format has."
            raise InputError(explain(wrong, "a checkpoint without it", CURE))
        if kinds and found.dtype not in kinds:
            names = " or ".join(_name(kind) for kind in kinds)
            wrong = f"{self.name}.{part} is not stored as config.json says: {names} was expected."
            raise InputError(explain(wrong, _name(found.dtype), CURE))
        return found

    def scales(self, part: str) -> Any:
        """The scales; raises if any is not finite."""
        found = self.tensor(part)
        if found.dtype == torch.uint8 or "e8m0" in str(found.dtype):  # exponents
            found = (found.view(torch.uint8).float() - 127).exp2()
        if not found.is_floating_point() or not found.isfinite().all():
            wrong = f"The scales of {self.name} are damaged: some are NaN or infinite."
            raise InputError(explain(wrong, f"{self.name}.{part}", CURE))
        narrow = found.to(self.dtype)
        return narrow if torch.equal(narrow.float(), found.float()) else found.float()

    def check(self, part: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Refuse a tensor of a wrong shape."""
        if found != expected:
            wrong = f"{self.name}.{part} does not belong to a matrix of {self.shape}."
            raise InputError(explain(wrong, f"{found} where {expected} was expected", CURE))

    def made(self, numbers: Any, scales: Any, kind: str, zeros: Any = None) -> Packed:
        """The matrix made from these numbers; refused if the scales do not divide it evenly."""
        most, largest = SCALES_BELOW.get(kind, float("inf")), float(scales.abs().max())
        if largest >= most:
            wrong = f"The scales of {self.name} are too large for small floats."
            received = f"{largest:.3g} where less than {most:g} is served"
            raise UnsupportedError(explain(wrong, received, CURE))
        depth = self.shape[1]
        if not all(map(_is_even, self.shape, scales.shape, self.block)):
            wrong = f"The groups of {self.name} do not divide it."
            received = f"{tuple(scales.shape)} scales for a matrix of {self.shape}"
            if any(self.block):
                told = " x ".join("?" if size is None else str(size) for size in self.block)
                received += f", where config.json has one for {told}"
            raise UnsupportedError(explain(wrong, received, UNEVEN))
        if not part_of(depth, depth // scales.shape[1], kind):
            wrong = f"The inputs of {self.name} cannot be packed in groups of this size."
            received = f"{depth} inputs in groups of {depth // scales.shape[1]}"
            raise UnsupportedError(explain(wrong, received, UNEVEN))
        return packed(numbers, scales, kind, self.dtype, zeros=zeros)


CURE = (
    "Its files are damaged, or do not belong together: download the model again, and see that its "
    "config.json is the one of its weights."
)
UNEVEN = (
    "Groups of 16, 32, 64 or 128 inputs that divide the matrix are served; load the model in "
    "bfloat16 instead, or quantise it anew."
)
Reader = Callable[[Stored], Packed]


class Format(NamedTuple):
    """How a checkpoint stores its matrices."""

    name: str  # for people to read
    parts: tuple[str, ...]  # the tensors of a matrix, of which the first is always there
    read: Reader


def format_of(config: Mapping[str, Any]) -> Format:
    """The format that quantization_config describes; raises UnsupportedError if it is not
    supported."""
    made, block = _format_of(config), _block_of(config)
    return made._replace(read=lambda stored: made.read(stored._replace(block=block)))


def _format_of(config: Mapping[str, Any]) -> Format:
    method = str(config.get("quant_method", "")).lower()
    if method == "fp8":
        return Format("fp8", ("weight", "weight_scale_inv"), _read_fp8)
    if method == "mxfp4":
        return Format("mxfp4", ("blocks", "scales"), _read_blocks)
    if method == "compressed-tensors":
        return _compressed(config)
    if method == "awq":
        _expect(config, "version", "gemm", None)
        _expect(config, "bits", 4, None)
        return Format("awq", ("qweight", "qzeros", "scales"), _read_awq)
    if method == "gptq":
        bits, version = config.get("bits"), config.get("checkpoint_format", "gptq")
        if bits not in (4, 8):
            raise unserved(f"gptq with {bits!r} bits", "gptq with 4 or 8 bits")
        if version not in ("gptq", "gptq_v2"):
            raise unserved(f"gptq in the layout {version!r:.40}", "checkpoint_format gptq")
        added = 0 if version == "gptq_v2" else 1
        parts = ("qweight", "qzeros", "scales", "g_idx")
        return Format(f"gptq, {bits} bits", parts, lambda stored: _read_gptq(stored, bits, added))
    raise unserved(f"quant_method {method!r:.40}", NEAREST.get(method, "fp8 or compressed-tensors"))


USUAL_BLOCK = (128, 128)
"""The rows and inputs that share a scale in an fp8 checkpoint that does not say so."""
NEAREST = {
    "fbgemm_fp8": "fp8, or compressed-tensors float-quantized",
    "bitsandbytes": "awq, gptq, or compressed-tensors pack-quantized",
    "modelopt": "compressed-tensors float-quantized",
    "auto-round": "gptq or awq, as which AutoRound can export",
    "hqq": "gptq or awq",
}
"""For methods that are not supported, the most similar supported ones."""


def unserved(what: str, nearest: str) -> UnsupportedError:
    """The error for a format that is not supported."""
    wrong = "The checkpoint stores its weights in a format that is not served."
    cure = f"The nearest that is served: {nearest}.  Or load the model in bfloat16."
    return UnsupportedError(explain(wrong, what, cure))


def _expect(config: Mapping[str, Any], field: str, *served: Any) -> None:
    value = config.get(field)
    value = value.lower() if isinstance(value, str) else value
    if value not in served:
        method = config["quant_method"]
        raise unserved(f"{method} with {field} {value!r:.40}", f"{method} with {served[0]!r}")


def _compressed(config: Mapping[str, Any]) -> Format:
    """The format of a compressed-tensors checkpoint, which must use one format for all matrices."""
    name, groups = config.get("format"), config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        wrong = "quantization_config has no config_groups, which compressed-tensors has."
        raise InputError(explain(wrong, repr(groups)[:60], CURE))
    told = [group.get("weights") or {} for group in groups.values()]
    if len(groups) > 1 and any(one != told[0] for one in told):
        raise unserved("compressed-tensors with several formats", "one format for all layers")
    bits, kind = told[0].get("num_bits"), told[0].get("type")
    if told[0].get("actorder") == "group":
        raise unserved("groups in the order of activations", "actorder weight, or none")
    full = f"compressed-tensors {name}"
    if name in ("float-quantized", "naive-quantized") and (kind, bits) == ("float", 8):
        return Format(full, ("weight", "weight_scale"), _read_float)
    if name in ("int-quantized", "naive-quantized") and (kind, bits) == ("int", 8):
        return Format(full, ("weight", "weight_scale", "weight_zero_point"), _read_int8)
    if name == "pack-quantized" and kind == "int" and bits in (4, 8):
        parts = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape")
        return Format(f"{full}, {bits} bits", parts, lambda stored: _read_words(stored, bits))
    if name == "mxfp4-pack-quantized" and (kind, bits) == ("float", 4):
        return Format(full, ("weight_packed", "weight_scale"), _read_mxfp4)
    nearest = "compressed-tensors float-quantized (8 bits) or pack-quantized (4 or 8 bits)"
    raise unserved(f"{full} with {kind} of {bits} bits", nearest)


def _block_of(config: Mapping[str, Any]) -> Block:
    """The block of a matrix that has one scale, as config.json says."""
    told = config
    for group in (config.get("config_groups") or {}).values():
        told = group.get("weights") or {}
    is_fp8 = str(config.get("quant_method")).lower() == "fp8"
    usual = USUAL_BLOCK if is_fp8 else told.get("block_structure")
    sizes = told.get("weight_block_size", usual) or (None, told.get("group_size"))
    if isinstance(sizes, str):  # as older files have them
        sizes = [int(size) for size in sizes.split("x") if size.isdigit()]
    rows, depth, *_ = (
        size if isinstance(size, int) and size > 0 else None for size in (*sizes, None, None)
    )
    return rows, depth


def _is_even(size: int, num_scales: int, block: int | None) -> bool:
    """Whether scales divide an axis of a matrix evenly. A number of scales that is rounded up may
    divide it too, into other groups than were meant."""
    is_block = block is None or num_scales in (1, size) or num_scales * block == size
    return size % num_scales == 0 and is_block


def _read_fp8(stored: Stored) -> Packed:
    return _floats(stored, "weight_scale_inv")


def _read_float(stored: Stored) -> Packed:
    return _floats(stored, "weight_scale")


def _floats(stored: Stored, part: str) -> Packed:
    values, scales = stored.tensor("weight", torch.float8_e4m3fn), stored.scales(part)
    stored.check("weight", tuple(values.shape), stored.shape)
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales
    scales = scales.reshape(-1, 1) if scales.dim() == 1 else scales
    numbers = values.view(torch.uint8)
    if (numbers & 0x7F == 0x7F).any():
        wrong = f"The weights of {stored.name} are damaged: some are NaN."
        raise InputError(explain(wrong, f"{stored.name}.weight", CURE))
    rows = stored.shape[0]
    if len(scales) == 1 and rows > 1 and scales.shape[1] == 1:
        scales = scales.expand(rows, 1).contiguous()  # so that matrices of other scales may follow
    return stored.made(numbers, scales, "e4m3")


def _read_mxfp4(stored: Stored) -> Packed:
    rows, depth = stored.shape
    return _float4(stored, "weight_packed", "weight_scale", (rows, depth // 2))


def _read_blocks(stored: Stored) -> Packed:
    rows, depth = stored.shape
    return _float4(stored, "blocks", "scales", (rows, depth // 32, 16))


def _float4(stored: Stored, part: str, scales: str, shape: tuple[int, ...]) -> Packed:
    """A matrix of 4-bit floats stored as pairs, the first in the low bits, in groups of 32."""
    (rows, depth), pairs = stored.shape, stored.tensor(part, torch.uint8)
    if depth % 32:
        wrong = f"The groups of {stored.name} do not divide it."
        raise UnsupportedError(explain(wrong, f"{depth} inputs in groups of 32", UNEVEN))
    stored.check(part, tuple(pairs.shape), shape)
    stored.check(scales, tuple(stored.tensor(scales, torch.uint8).shape), (rows, depth // 32))
    pairs = pairs.reshape(rows, depth // 2)
    numbers = torch.stack([pairs & 0xF, pairs >> 4], 2).reshape(rows, depth)
    return stored.made(numbers, stored.scales(scales), "e2m1")


def _read_int8(stored: Stored) -> Packed:
    values = stored.tensor("weight", torch.int8)
    stored.check("weight", tuple(values.shape), stored.shape)
    zeros = stored.find("weight_zero_point")
    scales = _by_row(stored, stored.scales("weight_scale"))
    if zeros is not None:
        zeros = _by_row(stored, zeros).to(torch.int16).add(128).to(torch.uint8)
        zeros = None if bool((zeros == 128).all()) else zeros
    return stored.made(values.view(torch.uint8) ^ 0x80, scales, "int8", zeros)


def _read_words(stored: Stored, bits: int) -> Packed:
    (rows, depth), words = stored.shape, stored.tensor("weight_packed", torch.int32)
    shape = stored.find("weight_shape")
    if shape is not None:
        stored.check("weight_shape", tuple(shape.tolist()), stored.shape)
    stored.check("weight_packed", tuple(words.shape), (rows, -(-depth * bits // 32)))
    scales = _by_row(stored, stored.scales("weight_scale"))
    zeros = stored.find("weight_zero_point")
    if zeros is not None:
        expected = -(-rows * bits // 32), scales.shape[1]
        stored.check("weight_zero_point", tuple(zeros.shape), expected)
        zeros = _apart(zeros.T, bits)[:, :rows].T.contiguous()
    kind = "int4" if bits == 4 else "int8"
    return stored.made(_apart(words, bits)[:, :depth].contiguous(), scales, kind, zeros)


def _read_awq(stored: Stored) -> Packed:
    rows, depth = stored.shape
    words = stored.tensor("qweight", torch.int32)
    stored.check("qweight", tuple(words.shape), (depth, rows // 8))
    scales, zeros = stored.scales("scales"), stored.tensor("qzeros", torch.int32)
    stored.check("scales", tuple(scales.shape[1:]), (rows,))
    stored.check("qzeros", tuple(zeros.shape), (len(scales), rows // 8))

    def in_order(words: Any) -> Any:
        apart = _apart(words, 4)
        return apart.view(len(words), -1, 8)[:, :, list(AWQ_ORDER)].reshape(apart.shape).T

    numbers = in_order(words).contiguous()
    return stored.made(numbers, scales.T.contiguous(), "int4", in_order(zeros).contiguous())


def _read_gptq(stored: Stored, bits: int, added: int) -> Packed:
    (rows, depth), per_word = stored.shape, 32 // bits
    words = stored.tensor("qweight", torch.int32)
    stored.check("qweight", tuple(words.shape), (depth // per_word, rows))
    scales, zeros = stored.scales("scales"), stored.tensor("qzeros", torch.int32)
    stored.check("scales", tuple(scales.shape[1:]), (rows,))
    stored.check("qzeros", tuple(zeros.shape), (len(scales), rows // per_word))
    order = stored.find("g_idx")
    group = depth // max(len(scales), 1)
    if order is not None:
        usual = torch.arange(depth, device=order.device) // max(group, 1)
        if not torch.equal(order.to(usual.dtype), usual):
            raise unserved("gptq with desc_act, whose groups are not in order", "desc_act false")
    zeros = _apart(zeros, bits).to(torch.int16) + added
    if int(zeros.max()) > 255:
        raise unserved("gptq with a zero of 256", "symmetric 8-bit weights")
    numbers = _apart(words.T, bits)
    kind = "int4" if bits == 4 else "int8"
    zeros = zeros.to(torch.uint8).T.contiguous()
    middle = NUMBERS[kind].middle
    is_symmetric = bool((zeros == middle).all())
    return stored.made(
        numbers.contiguous(), scales.T.contiguous(), kind, None if is_symmetric else zeros
    )


def _name(kind: Any) -> str:
    return str(kind).removeprefix("torch.")


def _by_row(stored: Stored, table: Any) -> Any:
    """A table of scales or zeros, expanded to one row per row of the matrix."""
    table = table.reshape(-1, 1) if table.dim() < 2 else table
    if len(table) == 1 and stored.shape[0] > 1:
        table = table.expand(stored.shape[0], table.shape[1]).contiguous()
    return table


def _apart(words: Any, bits: int) -> Any:
    """The numbers in rows of 32-bit words, one per byte, those in the lowest bits first."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    apart = words.contiguous()[:, :, None] >> shifts & (1 << bits) - 1
    return apart.to(torch.uint8).reshape(len(words), -1)
