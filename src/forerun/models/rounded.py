"""A copy of a transformers model with 8-bit or 4-bit linear weights; the rest is shared.

A pass over few tokens is limited by reading the weights, so fewer bits take less time if the
product reads them directly. PyTorch has such products for CPUs, in bfloat16. Elsewhere the weights
are converted at each use, which saves memory but no time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, Literal, get_args

import torch
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from forerun.base.errors import InputError, UnsupportedError, explain

Bits = Literal["int8", "int4"]
BLOCK = 32  # weights that share a scale at 4 bits; at 8 bits a row of outputs does
SMALLEST = 1e-30  # lower bound of scales, for weights that are all equal
FEW = 16  # for up to this number of tokens, products that read rounded weights are faster


class RoundedLinear(torch.nn.Module, ABC):  # type: ignore[misc]
    """A linear layer (..., in) to (..., out); subclasses define how weights are stored."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.bias = bias
        self.keep(weight)

    @abstractmethod
    def keep(self, weight: Any) -> None:
        """Round (out, in) and store it."""

    @property
    @abstractmethod
    def weight(self) -> Any:
        """The rounded weight (out, in) as floats, for models that read it themselves."""

    @abstractmethod
    def product(self, x: Any) -> Any:
        """The product (N, out) of inputs (N, in) with the weight."""

    def forward(self, x: Any) -> Any:
        """The outputs (..., out) for inputs (..., in)."""
        flat = x.reshape(-1, x.shape[-1])
        output = self.product(flat).view(*x.shape[:-1], -1)
        return output if self.bias is None else output + self.bias


class Int8Linear(RoundedLinear):
    """A layer with 8-bit codes (out, in), and a scale (out,) per output."""

    def keep(self, weight: Any) -> None:
        exact = weight.contiguous().float()
        scales = (exact.abs().amax(1, keepdim=True) / 127).clamp(min=SMALLEST)  # (out, 1)
        self.register_buffer("codes", (exact / scales).round().to(torch.int8))
        self.register_buffer("scales", scales[:, 0].to(weight.dtype))

    def product(self, x: Any) -> Any:
        if x.device.type == "cpu" and len(x) <= FEW:
            scales = self.scales.bfloat16()
            output = torch._weight_int8pack_mm(x.bfloat16().contiguous(), self.codes, scales)
            return output.to(x.dtype)
        return linear(x, self.codes.to(x.dtype)) * self.scales

    @property
    def weight(self) -> Any:
        return self.codes * self.scales[:, None]


class Int4Linear(RoundedLinear):
    """A layer with two 4-bit codes per byte (out, in / 2), and for each block a scale and a middle,
    which is the weight of code 8."""

    def keep(self, weight: Any) -> None:
        codes, scales, middles = _blocks(weight)
        codes = codes.view(len(weight), -1, 2).to(torch.uint8)
        self.register_buffer("pairs", codes[..., 0] | codes[..., 1] << 4)
        self.register_buffer("scales", scales)
        self.register_buffer("middles", middles)

    def product(self, x: Any) -> Any:
        return linear(x, self.weight.to(x.dtype))

    @property
    def weight(self) -> Any:
        codes = torch.stack([self.pairs & 15, self.pairs >> 4], dim=-1)  # (out, in / 2, 2)
        steps = codes.view(len(codes), -1, BLOCK) - 8.0
        return torch.addcmul(self.middles, steps.to(self.scales.dtype), self.scales).flatten(1)


class Int4LinearOnCpu(RoundedLinear):
    """A layer of 4-bit codes in the order that PyTorch's product for a CPU reads."""

    @staticmethod
    def fits(weight: Any) -> bool:
        """Whether PyTorch has this product for a weight (out, in)."""
        return weight.device.type == "cpu" and len(weight) % 16 == 0

    def keep(self, weight: Any) -> None:
        codes, scales, middles = _blocks(weight)
        packed = torch._convert_weight_to_int4pack_for_cpu(codes.flatten(1).int(), 1)
        both = torch.cat([scales, middles], dim=2).transpose(0, 1)  # (blocks, out, 2)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", both.bfloat16().contiguous())
        self.dtype = weight.dtype

    def product(self, x: Any) -> Any:
        flat = x.bfloat16().contiguous()
        output = torch._weight_int4pack_mm_for_cpu(flat, self.packed, BLOCK, self.scales)
        return output.to(x.dtype)

    @property
    def weight(self) -> Any:
        size = BLOCK * len(self.scales)
        return self.product(torch.eye(size, dtype=self.dtype)).T


def rounded_copy(model: Any, bits: Bits) -> Any:
    """A copy of a model with rounded linear layers; layers that do not divide into blocks stay
    exact.  All other modules are shared."""
    if bits not in get_args(Bits):
        works = " and ".join(map(repr, get_args(Bits)))
        raise InputError(explain("Unknown rounding of the weights.", repr(bits), f"{works} work."))
    done: dict[int, Any] = {}
    with torch.inference_mode():
        copied = _rounded(model, bits, done)
    if not any(isinstance(module, RoundedLinear) for module in done.values()):
        wrong = "The model has no plain linear layers to round."
        cure = "Use a model in float32, float16 or bfloat16, or another drafter."
        raise UnsupportedError(explain(wrong, type(model).__name__, cure))
    return copied


def _rounded(module: Any, bits: Bits, done: dict[int, Any]) -> Any:
    if id(module) in done:
        return done[id(module)]
    if "forward" in vars(module):  # it is bound to the original and would use its weights
        wrong = "The forward of a module was replaced, as accelerate does to spread a model out."
        cure = "Load the model onto one device, or use another drafter."
        raise UnsupportedError(explain(wrong, type(module).__name__, cure))
    if type(module) is torch.nn.Linear and _in_blocks(module.weight):
        made = _linear(module.weight, module.bias, bits)
    elif type(module) is Conv1D and _in_blocks(module.weight.T):  # GPT-2's, the other way round
        made = _linear(module.weight.T, module.bias, bits)
    else:
        made = copy(module)
        made._modules = {
            name: child if child is None else _rounded(child, bits, done)
            for name, child in module._modules.items()
        }
    done[id(module)] = made
    return made


def _linear(weight: Any, bias: Any, bits: Bits) -> Any:
    if bits == "int8":
        return Int8Linear(weight, bias)
    kind = Int4LinearOnCpu if Int4LinearOnCpu.fits(weight) else Int4Linear
    return kind(weight, bias)


def _in_blocks(weight: Any) -> bool:
    """Whether the input size is a multiple of BLOCK, as products with rounded weights require."""
    return bool(weight.is_floating_point() and weight.shape[1] % BLOCK == 0)


def _blocks(weight: Any) -> tuple[Any, Any, Any]:
    """The 4-bit form of a weight: codes 0 .. 15 (out, blocks, BLOCK), and scales and middles, both
    (out, blocks, 1)."""
    parts = weight.float().reshape(len(weight), -1, BLOCK)
    least, most = parts.aminmax(dim=2, keepdim=True)
    scales = ((most - least) / 15).clamp(min=SMALLEST)
    codes = ((parts - least) / scales).round()
    return codes, scales.to(weight.dtype), (least + 8 * scales).to(weight.dtype)
