"""Array operations that the array-API standard lacks, for NumPy, Torch, JAX and others.

Rules are written once against the array-API namespace `xp`.  Operations that the standard has no
portable form of (scatter, wide integers, the widest float of a device) are here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.base.errors import InputError, explain

Array = Any
"""An array of any supported library; shapes stand beside names instead of in the type."""
HostArray = np.ndarray[Any, Any]
"""A NumPy array on the host; its shape stands beside its name."""
Namespace = Any

BLOCK = 256
"""Tokens per vocabulary block: long rows are reduced block by block (noise and draws)."""


@cache
def numpy_namespace() -> Namespace:
    """NumPy as an array-API namespace. It is made when it is first needed: that imports all parts
    of NumPy, which takes a tenth of a second."""
    return compat.array_namespace(np.empty(0))


def namespace_of(**named: object) -> Namespace:
    """The array library of the named arguments; NumPy if none is an array.

    Ignores arguments that are `None` or plain sequences. Raises InputError if two arrays come from
    different libraries.
    """
    arrays = {name: value for name, value in named.items() if compat.is_array_api_obj(value)}
    if not arrays:
        return numpy_namespace()
    try:
        return compat.array_namespace(*arrays.values())
    except TypeError as error:
        kinds = ", ".join(f"{name}: {type(value).__module__}" for name, value in arrays.items())
        cure = "Convert them all to one library first."
        raise InputError(explain("Arrays of different libraries were mixed.", kinds, cure)) from (
            error
        )


def device_of(**named: object) -> Any:
    """The device of the named arrays; InputError if they are on different ones."""
    devices = {n: compat.device(v) for n, v in named.items() if compat.is_array_api_obj(v)}
    if len({str(device) for device in devices.values()}) > 1:
        received = ", ".join(f"{name}: {device}" for name, device in devices.items())
        cure = "Move them all to one device first."
        raise InputError(explain("Arrays live on different devices.", received, cure))
    return next(iter(devices.values()), None)


def on_host(xp: Namespace, device: Any) -> bool:
    """Whether Python can read single numbers cheaply: in NumPy, or Torch on the CPU."""
    if compat.is_torch_namespace(xp):
        return str(device) == "cpu"
    return bool(compat.is_numpy_namespace(xp))


def is_floating(xp: Namespace, x: Array) -> bool:
    """Whether an array has a floating-point dtype, bfloat16 included."""
    return bool(xp.isdtype(x.dtype, "real floating")) or "bfloat16" in str(x.dtype)


def is_integer(xp: Namespace, x: Array) -> bool:
    """Whether an array has an integer dtype."""
    return bool(xp.isdtype(x.dtype, "integral"))


def is_half(x: Array) -> bool:
    """Whether a floating-point array is float16 or bfloat16. Arithmetic upcasts such arrays
    first."""
    return getattr(x.dtype, "itemsize", 0) == 2  # dtypes of array_api_strict have no itemsize


def upcast(xp: Namespace, x: Array) -> Array:
    """An array in half precision as float32; any other as it is."""
    return xp.astype(x, xp.float32) if is_half(x) else x


def widest_float(xp: Namespace, device: Any) -> Any:
    """float64 where the library and the device have it, else float32 (JAX by default, MPS)."""
    if compat.is_jax_namespace(xp):
        return xp.asarray(0.0).dtype
    return xp.float32 if str(device).startswith("mps") else xp.float64


def index_dtype(xp: Namespace) -> Any:
    """The integer type used for tokens and indices: int64, or JAX's default."""
    return xp.asarray(0).dtype if compat.is_jax_namespace(xp) else xp.int64


def as_indices(xp: Namespace, values: Any, device: Any) -> Array:
    """Integers, a list or an array, as an index array of the namespace."""
    if compat.is_array_api_obj(values):
        return xp.astype(values, index_dtype(xp), copy=False)
    return xp.asarray(values, dtype=index_dtype(xp), device=device)


def to_numpy(x: Array) -> HostArray:
    """Any supported array as a NumPy array, which shares its memory where that is possible."""
    if isinstance(x, np.ndarray):
        return x
    if compat.is_torch_array(x):
        x = x.cpu().float() if x.dtype is sys.modules["torch"].bfloat16 else x
        return np.asarray(x.numpy(force=True))
    try:
        return np.asarray(x)
    except (TypeError, ValueError, BufferError, RuntimeError):
        return np.from_dlpack(x)


def tensor_if_loaded(x: HostArray) -> Array:
    """A torch tensor of the same memory where torch is imported, else the array itself."""
    from_numpy = getattr(sys.modules.get("torch"), "from_numpy", None)
    return x if from_numpy is None else from_numpy(x)


def joined(parts: Sequence[Array]) -> Array:
    """Arrays (N_i, F) joined to one: a torch tensor if all are tensors, else a NumPy array."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, np.ndarray) for part in parts):  # others are tensors in main memory
        return np.concatenate([np.asarray(part) for part in parts])
    return sys.modules["torch"].cat(list(parts))


def scatter_rows(xp: Namespace, ids: Array, values: Array, width: int) -> Array:
    """Make rows (R, width) that hold values (R, S) at the columns ids (R, S), and 0 elsewhere. The
    ids of a row must be distinct."""
    if compat.is_torch_namespace(xp):
        return values.new_zeros((values.shape[0], width)).scatter_(1, ids, values)
    if compat.is_jax_namespace(xp):
        rows = xp.arange(ids.shape[0])[:, None]
        return xp.zeros((ids.shape[0], width), dtype=values.dtype).at[rows, ids].set(values)
    if compat.is_numpy_namespace(xp):
        out = np.zeros((ids.shape[0], width), dtype=values.dtype)
        np.put_along_axis(out, ids, values, axis=1)
        return out
    columns = xp.arange(width, dtype=ids.dtype, device=compat.device(ids))
    hit = xp.astype(ids[:, :, None] == columns[None, None, :], values.dtype)
    return xp.sum(hit * values[:, :, None], axis=1)


def positive_part(xp: Namespace, x: Array) -> Array:
    """max(x, 0), entry by entry.  x must not be used again: it is overwritten where possible."""
    if compat.is_numpy_namespace(xp):
        return np.maximum(x, 0.0, out=x)
    return x.clamp_(min=0.0) if compat.is_torch_namespace(xp) else xp.maximum(x, 0.0)


def put_rows(xp: Namespace, mask: Array, values: Array, rest: Array) -> Array:
    """A copy of rest (B, ...) in which the R rows selected by mask (B,) are replaced by values
    (R, ...)."""
    if values.shape[0] == rest.shape[0]:
        return values
    index = xp.cumulative_sum(xp.astype(mask, index_dtype(xp))) - 1
    spread = xp.take(values, xp.maximum(index, xp.zeros_like(index)), axis=0)
    return xp.where(xp.reshape(mask, (-1,) + (1,) * (rest.ndim - 1)), spread, rest)


def sum_rows(xp: Namespace, x: Array) -> Array:
    """Sums over the last axis of x; in NumPy by a product with ones, which is fastest."""
    if compat.is_numpy_namespace(xp):
        with np.errstate(invalid="ignore"):  # some BLAS libraries compute beyond the last row
            return x @ _ones(x.shape[-1], x.dtype)
    return xp.sum(x, axis=-1)


@lru_cache(maxsize=8)
def _ones(count: int, dtype: Any) -> Array:
    return np.ones(count, dtype=dtype)


def reduce_blocks(xp: Namespace, reduce: Callable[[Array], Array], x: Array) -> Array:
    """Apply `reduce`, which reduces the last axis, to each block of x (R, V). Returns
    (R, num_blocks)."""
    num_rows, width = x.shape
    whole = width // BLOCK * BLOCK
    parts = [reduce(xp.reshape(x[:, :whole], (num_rows, -1, BLOCK)))] if whole else []
    if whole < width:
        parts.append(reduce(x[:, None, whole:]))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=1)


def argmax_blocks(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """The column and the value of the largest entry of each block of x (R, V), both
    (R, num_blocks)."""
    columns = in_blocks(xp, reduce_blocks(xp, partial(xp.argmax, axis=-1), x))
    return columns, take_columns(xp, x, columns)


def sum_blocks(xp: Namespace, x: Array) -> Array:
    """The sums (R, num_blocks) of the blocks of x (R, V)."""
    return reduce_blocks(xp, partial(sum_rows, xp), x)


def in_blocks(xp: Namespace, lanes: Array) -> Array:
    """Convert positions inside blocks, (R, num_blocks), to columns of the whole row,
    (R, num_blocks)."""
    starts = xp.arange(lanes.shape[1], dtype=lanes.dtype, device=compat.device(lanes)) * BLOCK
    return lanes + starts[None, :]


def take_columns(xp: Namespace, x: Array, columns: Array) -> Array:
    """Entries (R, N) of x (R, V) at columns (R, N): `take_along_axis` with less overhead."""
    rows = xp.arange(x.shape[0], dtype=columns.dtype, device=compat.device(x))
    return x[rows[:, None], columns]


def take_blocks(xp: Namespace, x: Array, rows: Array, blocks: Array) -> tuple[Array, Array]:
    """Read M whole blocks of x (R, V), given by rows (M,) and blocks (M,). Returns token ids and
    values, both (M, BLOCK).

    Columns past the vocabulary get value 0 and id V - 1, so they can never be chosen.
    """
    num_rows, width = x.shape
    lanes = xp.arange(BLOCK, dtype=blocks.dtype, device=compat.device(x))
    tokens = blocks[:, None] * BLOCK + lanes[None, :]
    if width % BLOCK == 0:
        flat = xp.reshape(x, (num_rows * width // BLOCK, BLOCK))
        return tokens, xp.take(flat, rows * (width // BLOCK) + blocks, axis=0)
    inside = tokens < width
    tokens = xp.where(inside, tokens, width - 1)
    return tokens, xp.where(inside, x[rows[:, None], tokens], 0.0)
