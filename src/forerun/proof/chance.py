"""A stand-in for numpy.random.Generator that follows every outcome of ordinary NumPy code.

`rng.random()` gives an unknown number, and nearly every verifier only compares it.  Each comparison
splits the interval the number may lie in, with the exact chances.  Code that uses the number in any
other way raises `CannotEnumerate`, and is tested by sampling instead.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from forerun.base.errors import explain
from forerun.proof.branches import CannotEnumerate, Path

OPERATORS: dict[Any, Callable[..., Any]] = {
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.negative: operator.neg,
}
"""What NumPy may do with an unknown number."""

MANY = 1000
"""A question with more answers than this is not followed answer by answer."""

ROUNDING = 1e-15
"""Chances this close to 0 or 1 are rounding errors; their paths are not followed."""

NO_RNG = explain(
    "The function draws random numbers, but none from the rng that it is given.",
    "other tokens for the same draft and rng",
    "Draw with rng.random() and rng.choice() in place of numpy.random or a generator of its own; "
    "in Python, certify(function, method='sampled') tests it as it is.",
)
"""What a function hears that leaves its rng alone."""


class Chance:
    """One path through the outcomes: an rng whose answers are scripted and whose weight is kept."""

    def __init__(self, path: Path, weight: float = 1.0) -> None:
        self.path = path
        self.weight = weight
        self.num_uses = 0  # questions asked by the code that was given this rng

    def random(self, size: int | tuple[int, ...] | None = None) -> Any:
        """Unknown numbers in [0, 1)."""
        self.num_uses += 1
        if size is None:
            return Unknown(self)
        _few(math.prod(np.atleast_1d(size).tolist()), "numbers at once")
        numbers = np.empty(size, dtype=object)
        for index in np.ndindex(numbers.shape):
            numbers[index] = Unknown(self)
        return numbers

    def choice(self, a: Any, size: None = None, replace: bool = True, p: Any = None) -> Any:
        """One of a (or of range(a)), with chances p."""
        self.num_uses += 1
        if size is not None:
            raise CannotEnumerate("choice with a size")
        options = range(int(a)) if isinstance(a, int) or np.ndim(a) == 0 else a
        count = _few(len(options), "options to choose from")
        chances = [1 / count] * count if p is None else np.asarray(p).tolist()
        return options[self.pick(chances)]

    def integers(self, low: int, high: int | None = None, size: None = None, **how: Any) -> int:
        self.num_uses += 1
        if size is not None or how:
            raise CannotEnumerate("integers with a size, a type or an endpoint")
        start, stop = (0, int(low)) if high is None else (int(low), int(high))
        count = _few(stop - start, "integers to choose from")
        return start + self.pick([1 / count] * count)

    def pick(self, chances: list[float]) -> int:
        """An option, by its chance; impossible ones are not followed."""
        possible = [index for index, chance in enumerate(chances) if chance > 0]
        if not possible:
            raise CannotEnumerate("a choice among options of chance 0")
        index = possible[self.path.ask(len(possible))]
        self.weight *= chances[index] / sum(chances)
        return index

    def split(self, chance: float) -> bool:
        """True with the given chance; no question is asked where the answer is certain."""
        if chance <= ROUNDING or chance >= 1 - ROUNDING:
            return chance > 0.5
        answer = bool(self.path.ask(2))
        self.weight *= chance if answer else 1 - chance
        return answer

    def __getattr__(self, name: str) -> Any:
        raise CannotEnumerate(name)


def _few(count: int, what: str) -> int:
    """The count; raises if there are too many outcomes to list."""
    if count > MANY:
        raise CannotEnumerate(f"{count:,} {what}")
    return count


class Unknown:
    """f(u) for an unknown u in [low, high) and an increasing or decreasing f, known by inverse."""

    def __init__(
        self,
        chance: Chance,
        interval: list[float] | None = None,
        inverse: Callable[[float], float] = float,
        rising: bool = True,
    ) -> None:
        self.chance = chance
        self.interval = [0.0, 1.0] if interval is None else interval
        self.inverse = inverse
        self.rising = rising

    def _below(self, value: Any) -> bool:
        """Whether f(u) < value: split the interval at the place where they are equal."""
        low, high = self.interval
        cut = min(max(self.inverse(float(value)), low), high)
        if cut - low <= ROUNDING or high - cut <= ROUNDING:  # a cumulative sum ends beside 1
            cut = low if cut - low <= ROUNDING else high
        share = (cut - low) / (high - low)
        left = self.chance.split(share)
        self.interval[:] = [low, cut] if left else [cut, high]
        return left if self.rising else not left

    def _changed(self, undo: Callable[[float], float], rising: bool) -> Unknown:
        before = self.inverse
        return Unknown(
            self.chance, self.interval, lambda value: before(undo(value)), self.rising == rising
        )

    def __lt__(self, value: Any) -> bool:
        return self._below(value)

    def __le__(self, value: Any) -> bool:
        return self._below(value)

    def __gt__(self, value: Any) -> bool:
        return not self._below(value)

    def __ge__(self, value: Any) -> bool:
        return not self._below(value)

    def __mul__(self, factor: Any) -> Any:
        scale = float(factor)
        if scale == 0:
            return 0.0
        return self._changed(lambda value: value / scale, scale > 0)

    __rmul__ = __mul__

    def __truediv__(self, factor: Any) -> Any:
        return self * (1 / float(factor))

    def __add__(self, other: Any) -> Unknown:
        shift = float(other)
        return self._changed(lambda value: value - shift, True)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Unknown:
        return self + -float(other)

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    def __neg__(self) -> Any:
        return self * -1

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy scalars and np.log hand over to the operators here."""
        if ufunc is np.log:
            return self.log()
        if ufunc not in OPERATORS:
            raise CannotEnumerate(ufunc.__name__)
        if any(isinstance(x, np.ndarray) and x.ndim for x in inputs):  # number by number
            return ufunc(*(_boxed(x) for x in inputs))
        return OPERATORS[ufunc](*(x if isinstance(x, Unknown) else float(x) for x in inputs))

    def __array_function__(self, function: Any, kinds: Any, given: Any, options: Any) -> Any:
        """A search for it among sorted numbers compares it with one after the other."""
        if function is not np.searchsorted:
            return function._implementation(*given, **options)
        return _place(*given, **options)

    def log(self) -> Unknown:
        return self._changed(lambda value: math.exp(min(value, 700.0)), True)

    def __float__(self) -> float:
        raise CannotEnumerate("the value of a random number")

    def __bool__(self) -> bool:
        raise CannotEnumerate("the truth of a random number")

    def __eq__(self, other: object) -> bool:
        raise CannotEnumerate("equality with a random number")

    __hash__ = object.__hash__


def _boxed(value: Any) -> Any:
    """Numbers, or one unknown number, as an array of objects."""
    if not isinstance(value, Unknown):
        return np.asarray(value).astype(object)
    box = np.empty((), dtype=object)
    box[()] = value
    return box


def _place(a: Any, v: Any, side: str = "left", sorter: None = None) -> int:
    """`np.searchsorted` of an unknown number."""
    if sorter is not None or not isinstance(v, Unknown):
        raise CannotEnumerate("searchsorted with a sorter, or among random numbers")
    is_before = operator.le if side == "left" else operator.lt
    edges = np.asarray(a).tolist()
    return next((i for i, edge in enumerate(edges) if is_before(v, edge)), len(edges))
