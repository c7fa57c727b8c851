"""Triton's interpreter, repaired where the kernels of the pass need it.  Import this before them.

The repairs are of the interpreter alone; compiled kernels do not know of them.

- Loops in a kernel run over `range`, whose ends may be tensors.  The interpreter turns them into
  integers with `int(array)`, which NumPy 2.4 refuses for arrays of one element.
- The interpreter holds bfloat16 numbers as 16-bit integers, and `dot` multiplies these integers.
- It cuts float32 numbers off where it makes bfloat16 ones of them, which a device rounds.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

if os.environ.get("TRITON_INTERPRET") != "1":  # what imports this has its tensors on the CPU
    pytest.skip("needs Triton's interpreter", allow_module_level=True)

import quick_interpreter  # noqa: F401

IN_INTERPRETER = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:interpreting"),
]
_patch_tensor = interpreter._patch_lang_tensor
_cast = interpreter.InterpreterBuilder.cast_impl


def _patch_tensor_with_index(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _floats(handle: Any) -> Any:
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data


def _rounding_cast(self: Any, source: Any, kind: Any) -> Any:
    if (source.dtype.scalar, kind.scalar) == (tl.float32, tl.bfloat16):
        bits = source.data.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        rounded = np.where(np.isnan(source.data), 0x7FC0, rounded).astype(np.uint16)
        return interpreter.TensorHandle(rounded, tl.bfloat16)
    if (source.dtype.scalar, kind.scalar) == (tl.bfloat16, tl.float32):
        return interpreter.TensorHandle(_floats(source), tl.float32)
    return _cast(self, source, kind)


def _dot(self: Any, a: Any, b: Any, total: Any, *precision: Any) -> Any:
    with np.errstate(all="ignore"):  # padding may hold anything
        product = np.matmul(_floats(a), _floats(b), dtype=total.data.dtype) + total.data
    return interpreter.TensorHandle(product, total.dtype.scalar)


@pytest.fixture
def chained_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that add along the inner axis one by one, as tensor cores do in larger steps: then
    a sum has the same bits in tiles of all sizes, unless it is split or begun elsewhere."""

    def dot(self: Any, a: Any, b: Any, total: Any, *precision: Any) -> Any:
        left, right = (_floats(part).astype(np.float32) for part in (a, b))
        result = total.data.astype(np.float32)
        with np.errstate(all="ignore"):
            for column, row in zip(left.T, right, strict=True):
                result = result + column[:, None] * row
        return interpreter.TensorHandle(result, total.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


interpreter._patch_lang_tensor = _patch_tensor_with_index
interpreter.InterpreterBuilder.create_dot = _dot
interpreter.InterpreterBuilder.cast_impl = _rounding_cast
