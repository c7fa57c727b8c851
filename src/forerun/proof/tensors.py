"""Follows every outcome of Torch code: tensors of random numbers hold unknown numbers.

A `TorchFunctionMode` intercepts every call of a Torch function. A tensor returned by a source of
randomness is marked: its cells stand for `Unknown` numbers, or for choices that have not been made
yet. Marked tensors can be indexed, joined, compared, scaled, divided, logged and raced; any other
use raises `CannotEnumerate`. Each function is also called for real, which checks its arguments and
gives the shape of the result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from forerun.proof.branches import CannotEnumerate
from forerun.proof.chance import MANY, Chance
from forerun.proof.unknown import Numbers, Unknown, race

Cells = np.ndarray[Any, Any]


def _words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "less": operator.lt,
    "le": operator.le,
    "less_equal": operator.le,
    "gt": operator.gt,
    "greater": operator.gt,
    "ge": operator.ge,
    "greater_equal": operator.ge,
    "add": operator.add,
    "radd": operator.add,
    "iadd": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "isub": operator.sub,
    "rsub": lambda one, other: other - one,
    "mul": operator.mul,
    "multiply": operator.mul,
    "rmul": operator.mul,
    "imul": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "truediv": operator.truediv,
    "itruediv": operator.truediv,
    "idiv": operator.truediv,
    "rdiv": lambda one, other: other / one,
    "rtruediv": lambda one, other: other / one,
    "reciprocal": lambda one: 1.0 / one,
    "neg": operator.neg,
    "negative": operator.neg,
    "log": lambda one: one.log(),
    "log1p": lambda one: one.log1p(),
}
MOVING = _words(
    "getitem reshape view view_as reshape_as squeeze unsqueeze flatten expand expand_as clone "
    "detach contiguous transpose t permute flip repeat gather index_select take narrow select "
    "split chunk unbind movedim swapaxes ravel broadcast_to tile"
)
"""Functions that move the entries of their first tensor; their other arguments say where to."""
JOINING = _words("cat concat concatenate stack hstack vstack")
"""Functions that join several tensors into one."""
CASTING = _words("to float double half bfloat16 type type_as long int cpu cuda")
"""Functions that change the number format or the device of a tensor."""
READING = _words("item tolist int index bool float numpy array")
"""Functions that read the numbers themselves."""
UNSEEN = _words(
    "randn randn_like normal normal_ randperm poisson log_normal_ cauchy_ geometric_ random_ "
    "dropout randint_like rrelu"
)
"""Sources of randomness that are not followed."""
SEEN = _words(
    "get size dim numel nelement ndimension element_size is_floating_point is_complex stride "
    "storage_offset is_contiguous get_device hash repr len"
)
"""Functions that ask only for a tensor's shape, type or place, and never look at its numbers."""
BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Bits of the significands of Torch's formats."""


class Pick:
    """A random choice among options that is made only when its result is needed."""

    def __init__(self, choose: Callable[[], int]) -> None:
        """choose: makes the choice; called once, when the result is needed."""
        self._choose = choose
        self._place: int | None = None

    def place(self) -> int:
        """The index of the chosen option."""
        if self._place is None:
            self._place = self._choose()
        return self._place


class FollowedTensors(TorchFunctionMode):  # type: ignore[misc]
    """Follows Torch code along one path."""

    def __init__(self, chance: Chance) -> None:
        """chance: the path that is followed."""
        super().__init__()
        self.chance = chance
        self._marked: dict[int, tuple[torch.Tensor, Cells]] = {}  # by id; the tensor is kept alive

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle every call of a Torch function.

        Results of random sources are marked, operations on marked tensors are followed cell by
        cell, and everything else runs unchanged.
        """
        how = kwargs or {}
        name = func.__name__
        if name in UNSEEN:
            raise CannotEnumerate(f"torch.{name}")
        source = getattr(self, f"_from_{name.rstrip('_')}", None)
        if source is not None:
            return self._sourced(source, func, args, how)
        if not self._touches(args) and not (how and self._touches(how.values())):
            self._note_precision(args)
            return func(*args, **how)
        return self._handled(func, name.strip("_"), name.endswith("_"), args, how)

    # --- where numbers come from ---------------------------------------------------------------

    def _sourced(self, source: Callable[..., Cells], func: Any, args: Any, how: Any) -> Any:
        """Call a source of randomness, and mark the tensor that it returns.

        source: makes the cells that stand for its numbers.
        """
        if how.get("out") is not None:
            raise CannotEnumerate(f"torch.{func.__name__} with out=")
        args, how = self._resolved((args, how))
        real = func(*args, **how)
        if real.numel() > MANY:
            raise CannotEnumerate(f"{real.numel():,} numbers at once")
        self.chance.num_uses += 1
        self.chance.is_followed_elsewhere = True
        return self._mark(real, source(real, *args, **how))

    def _from_rand(self, real: torch.Tensor, *args: Any, **how: Any) -> Cells:
        """Cells for `rand`: unknown uniform numbers."""
        return _made(real.shape, lambda: Unknown(self.chance))

    _from_rand_like = _from_rand

    def _from_uniform(
        self, real: torch.Tensor, _: Any, start: float = 0.0, end: float = 1.0, **how: Any
    ) -> Cells:
        """Cells for `uniform_`: unknown uniform numbers between two bounds."""
        low, high = how.get("from", start), how.get("to", end)
        return _made(real.shape, lambda: Unknown(self.chance) * (high - low) + low)

    def _from_exponential(
        self, real: torch.Tensor, _: Any, lambd: float = 1.0, **how: Any
    ) -> Cells:
        """Cells for `exponential_`: unknown exponential numbers."""
        return _made(real.shape, lambda: Unknown.arrival(self.chance) / lambd)

    def _from_bernoulli(self, real: torch.Tensor, odds: Any, p: Any = None, **how: Any) -> Cells:
        """Cells for `bernoulli`: coins that are tossed when they are needed."""
        chances = odds if p is None else torch.as_tensor(p).expand(real.shape)
        self._note_precision((chances,))
        listed = chances.detach().double().flatten().tolist()
        return self._picks(real.shape, [[1 - chance, chance] for chance in listed])

    def _from_multinomial(
        self,
        real: torch.Tensor,
        weights: torch.Tensor,
        num_samples: int,
        replacement: bool = False,
        **how: Any,
    ) -> Cells:
        """Cells for `multinomial`: tokens drawn by weight.

        A single token per row is drawn when it is needed. Several tokens of one row depend on each
        other and are drawn at once.
        """
        self._note_precision((weights,))
        rows = weights.detach().double().reshape(-1, weights.shape[-1]).tolist()
        if num_samples == 1:
            return self._picks(real.shape, rows)
        places = [self.chance.picks(row, num_samples, replacement) for row in rows]
        return np.array(places, dtype=object).reshape(real.shape)

    def _from_randint(
        self, real: torch.Tensor, low: int, high: Any, *args: Any, **how: Any
    ) -> Cells:
        """Cells for `randint`: whole numbers, all equally likely."""
        start, stop = (low, high) if isinstance(high, int) else (0, low)
        if stop - start > MANY:
            raise CannotEnumerate(f"{stop - start:,} integers to choose from")
        weights = [0.0] * start + [1.0] * (stop - start) if start >= 0 else []
        if not weights:
            raise CannotEnumerate("negative random integers")
        return self._picks(real.shape, [weights] * real.numel())

    def _picks(self, shape: Any, rows: list[list[float]]) -> Cells:
        """One `Pick` for each row of weights."""
        cells = np.empty(len(rows), dtype=object)
        cells[:] = [Pick(partial(self.chance.pick, row)) for row in rows]
        return cells.reshape(shape)

    # --- what is done with them ----------------------------------------------------------------

    def _handled(self, func: Any, name: str, in_place: bool, args: Any, how: dict[str, Any]) -> Any:
        """Handle a function with marked tensors among its arguments."""
        if name in READING:
            return self._read(func, name, args[0])
        if name == "iter":
            return iter(self._moved(torch.unbind, False, args, how))
        if name in MOVING or name in JOINING:
            return self._moved(func, name in JOINING, args, how)
        if name in CASTING:
            return self._mark(func(*args, **how), self._cells(args[0]))
        if name in ("argmax", "argmin"):
            return self._raced(func, name, args, how)
        if all(
            isinstance(cell, Pick)
            for one in _leaves((args, how))
            if self._is_marked(one)
            for cell in self._cells(one).flat
        ):
            args, how = self._resolved((args, how))
            return self.__torch_function__(func, (), args, how)
        if name in ARITHMETIC and not how:
            return self._computed(func, name, args, in_place and not func.__name__.startswith("__"))
        if name == "where" and len(args) == 3:
            return self._computed(func, name, args, False)
        if name in SEEN:
            result = func(*args, **how)
            if not isinstance(result, torch.Tensor):
                return result
        raise CannotEnumerate(f"torch.{func.__name__} of random numbers")

    def _read(self, func: Any, name: str, tensor: torch.Tensor) -> Any:
        """The numbers of a tensor, for Python or NumPy; choices are made now."""
        cells = self._cells(tensor)
        if all(isinstance(cell, Pick) for cell in cells.flat):
            (tensor,) = self._resolved((tensor,))
            return func(tensor)
        values = np.array([_looked_at(cell) for cell in cells.flat] + [None], dtype=object)[:-1]
        values = values.reshape(cells.shape)
        if name in ("numpy", "array"):
            return values.view(Numbers)
        if name == "tolist":
            return values.tolist()
        (value,) = values.flat
        return value if name == "item" else {"bool": bool, "float": float}.get(name, int)(value)

    def _moved(self, func: Any, joins: bool, args: Any, how: dict[str, Any]) -> Any:
        """Apply a function that only moves entries, to the numbers of the cells, to see where each
        cell goes."""
        pool: list[Any] = []

        def numbered(tensor: torch.Tensor) -> torch.Tensor:
            """A tensor that holds, at each place, the number of its cell."""
            cells = self._cells(tensor)
            pool.extend(cells.flat)
            first = len(pool) - cells.size
            return torch.arange(first, len(pool), device=tensor.device).reshape(tensor.shape)

        first, *rest = args
        rest, how = self._resolved((tuple(rest), how))
        moved = [numbered(one) for one in first] if joins else numbered(first)
        places, real = func(moved, *rest, **how), func(first, *rest, **how)
        every = np.empty(len(pool), dtype=object)
        every[:] = pool
        if isinstance(real, torch.Tensor):
            return self._mark(real, _at(every, places))
        moved = zip(real, places, strict=True)
        return tuple(self._mark(one, _at(every, place)) for one, place in moved)

    def _computed(self, func: Any, name: str, args: Any, in_place: bool) -> Any:
        """Apply a function entry by entry."""
        operands = [
            self._cells(one) if isinstance(one, (torch.Tensor, Unknown)) else one
            for one in self._looked(args)
        ]
        if name == "where":
            found = np.where(operands[0].astype(bool), *operands[1:])
        else:
            found = np.frompyfunc(ARITHMETIC[name], len(operands), 1)(*operands)
        cells = np.empty(np.shape(found), dtype=object)
        cells[...] = found
        target = args[0]
        real = func(*self._placeholders(args))
        return self._mark(target if in_place else real, cells)

    def _raced(self, func: Any, name: str, args: Any, how: dict[str, Any]) -> Any:
        """The result of argmax or argmin over independent random numbers, decided as a race."""
        cells = self._cells(args[0])
        dim = how.get("dim", args[1] if len(args) > 1 else None)
        rows = cells.reshape(1, -1) if dim is None else np.moveaxis(cells, dim, -1)
        rows = rows.reshape(-1, rows.shape[-1])
        picks = np.empty(len(rows), dtype=object)
        picks[:] = [Pick(partial(race, row.tolist(), name)) for row in rows]
        real = func(*args, **how)
        return self._mark(real, picks.reshape(real.shape))

    # --- marks ---------------------------------------------------------------------------------

    def _mark(self, tensor: torch.Tensor, cells: Cells) -> torch.Tensor:
        """Mark a tensor with its cells; if all are known, it stays unmarked."""
        self._marked.pop(id(tensor), None)
        if any(isinstance(cell, (Unknown, Pick)) for cell in cells.flat):
            self._marked[id(tensor)] = tensor, cells
        else:
            values = torch.tensor(cells.ravel().tolist(), dtype=tensor.dtype)
            tensor.copy_(values.reshape(tensor.shape))
        return tensor

    def _touches(self, given: Iterable[Any]) -> bool:
        """Whether any argument, or any item in lists of arguments, is marked."""
        for one in given:
            if isinstance(one, (list, tuple)):
                if self._touches(one):
                    return True
            elif id(one) in self._marked or isinstance(one, Unknown):
                return True
        return False

    def _is_marked(self, one: Any) -> bool:
        """Whether a tensor or number is unknown."""
        return isinstance(one, Unknown) or id(one) in self._marked

    def _cells(self, tensor: Any) -> Cells:
        """The entries of a tensor as an array of objects in its shape."""
        if isinstance(tensor, Unknown):
            cell = np.empty((), dtype=object)
            cell[()] = tensor
            return cell
        known = self._marked.get(id(tensor))
        if known is not None:
            return known[1]
        self._note_precision((tensor,))
        return np.array(tensor.detach().cpu().tolist(), dtype=object)

    def _resolved(self, given: Any) -> Any:
        """The arguments, with all choices in their tensors made and written in."""
        for one in _leaves(given):
            if not self._is_marked(one):
                continue
            if isinstance(one, Unknown):
                raise CannotEnumerate("the value of a random number")
            cells = self._cells(one)
            if not all(isinstance(cell, (Pick, int)) for cell in cells.flat):
                raise CannotEnumerate("the value of a random number")
            values = [_looked_at(cell) for cell in cells.flat]
            del self._marked[id(one)]
            one.copy_(torch.tensor(values, dtype=one.dtype).reshape(one.shape))
        return given

    def _looked(self, args: Any) -> list[Any]:
        """The operands, with every `Pick` in them made."""
        for one in args:
            if id(one) in self._marked:
                cells = self._cells(one)
                for place in np.ndindex(cells.shape):
                    cells[place] = _looked_at(cells[place])
        return list(args)

    def _placeholders(self, args: Any) -> list[Any]:
        """The arguments with 0.5 in place of unknown numbers, for the real function."""
        return [0.5 if isinstance(one, Unknown) else one for one in args]

    def _note_precision(self, given: Any) -> None:
        """Record the number formats of tensors that are used with random numbers."""
        for one in given:
            if isinstance(one, torch.Tensor) and one.numel() > 1 and one.dtype in BITS:
                self.chance.precision.met_tensor(BITS[one.dtype])


def _made(shape: Any, make: Callable[[], Any]) -> Cells:
    """An array of this shape with a new cell at each place."""
    cells = np.empty(math.prod(shape), dtype=object)
    cells[:] = [make() for _ in range(cells.size)]
    return cells.reshape(tuple(shape))


def _at(every: Cells, places: torch.Tensor) -> Cells:
    """The cells at these places, in the shape of the places."""
    chosen: Cells = every[places.cpu().reshape(-1).numpy()]
    return chosen.reshape(tuple(places.shape))


def _looked_at(cell: Any) -> Any:
    """The number in a cell; if it is a pick, the choice is made now."""
    return cell.place() if isinstance(cell, Pick) else cell


def _leaves(given: Any) -> Iterable[Any]:
    """All values in nested lists, tuples and dictionaries."""
    if isinstance(given, (list, tuple)):
        for one in given:
            yield from _leaves(one)
    elif isinstance(given, dict):
        yield from _leaves(tuple(given.values()))
    else:
        yield given
