"""Stands for a random number whose value is never drawn, only compared and raced.

`Unknown` is f(u) for an unknown u in [low, high) and a monotone f. A comparison splits the interval
with the exact probabilities. Exponential and Gumbel numbers are of this form too, and an argmax or
argmin over independent ones is a race: option i wins with probability rate_i / sum of rates. Any
other use of the number raises `CannotEnumerate`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.proof.branches import CannotEnumerate

if TYPE_CHECKING:
    from forerun.proof.chance import Chance

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
"""The functions of NumPy that accept an unknown number, each with the operator that replaces it."""

ROUNDING = 1e-15
"""Chances this close to 0 or 1 are rounding errors; their paths are not followed."""

OPPOSITE = {
    "uniform": "minus uniform",
    "time": "minus time",
    "log time": "minus log time",
} | {"minus uniform": "uniform", "minus time": "time", "minus log time": "log time"}
"""For each form of a number, the form of minus that number."""

FIRST_ARRIVAL = {
    "argmin": ("time", "log time"),
    "argmax": ("minus time", "minus log time", "speed"),
}
"""The forms whose smallest, or largest, number belongs to the first arrival."""

NEVER = {"time": math.inf, "log time": math.inf, "minus time": -math.inf}
NEVER |= {"minus log time": -math.inf, "speed": 0.0}
"""For each form, the number of an option with rate 0, which never wins."""


@dataclass(frozen=True)
class Form:
    """A random number as a function of a uniform U, or of an exponential arrival time T ~
    Exp(rate).

    kind: "uniform" U, "time" T, "log time", "speed" 1 / T, and "minus ..." of these.
    """

    kind: str
    rate: float = 1.0

    def times(self, factor: float) -> Form | None:
        """The form of the number times a factor; None if it is not one of these kinds."""
        if factor < 0 and self.kind != "speed":  # a negative speed loses to every positive one
            turned = OPPOSITE.get(self.kind)
            return Form(turned, self.rate).times(-factor) if turned else None
        if factor == 1:
            return self
        powers = {"time": -1, "minus time": -1, "speed": 1}
        if self.kind not in powers:
            return None
        return Form(self.kind, self.rate * factor ** powers[self.kind])

    def plus(self, shift: float) -> Form | None:
        """The form of the number plus a shift; None if it is not one of these kinds."""
        if shift == 0:
            return self
        if self.kind == "minus uniform" and shift == 1:
            return Form("uniform")
        signs = {"log time": -1, "minus log time": 1}
        if self.kind not in signs:
            return None
        return Form(self.kind, self.rate * math.exp(signs[self.kind] * shift))

    def inverted(self) -> Form | None:
        """The form of 1 / the number; None if it is not one of these kinds."""
        other = {"time": "speed", "speed": "time"}.get(self.kind)
        return Form(other, self.rate) if other else None

    def log(self) -> Form | None:
        """The form of the number's logarithm; None if it is not one of these kinds."""
        logs = {"uniform": "minus time", "time": "log time", "speed": "minus log time"}
        kind = logs.get(self.kind) if self.rate > 0 else None
        return Form(kind, self.rate) if kind else None


class Unknown:
    """The number f(u), for an unknown u in [low, high) and a monotone f that is given by its
    inverse."""

    def __init__(
        self,
        chance: Chance,
        interval: list[float] | None = None,
        inverse: Callable[[float], float] = float,
        rising: bool = True,
        form: Form | None = None,
    ) -> None:
        """interval: where u is known to lie, shared by all numbers made from the same u.
        inverse: from f(u) to u.
        form: what f is, if the number can take part in races.
        """
        self.chance = chance
        self.interval = [0.0, 1.0] if interval is None else interval
        self.inverse = inverse
        self.rising = rising
        self.form = Form("uniform") if interval is None and form is None else form

    @classmethod
    def arrival(cls, chance: Chance) -> Unknown:
        """An exponential number with mean 1."""
        return cls(chance, None, lambda time: -math.expm1(-max(time, 0.0)), True, Form("time"))

    def _below(self, value: Any) -> bool:
        """Whether the number is below a value. If both are possible, one outcome is followed, and
        the interval shrinks to it."""
        low, high = self._span()
        bar = float(value)
        self.chance.precision.met(bar)
        cut = min(max(self.inverse(bar), low), high)
        if cut - low <= ROUNDING or high - cut <= ROUNDING:  # a cumulative sum ends beside 1
            cut = low if cut - low <= ROUNDING else high
        share = (cut - low) / (high - low)
        left = self.chance.split(share)
        self.interval[:] = [low, cut] if left else [cut, high]
        return left if self.rising else not left

    def _span(self) -> tuple[float, float]:
        """The interval in which u lies; raises for a number that was already in a race."""
        if not self.interval:
            raise CannotEnumerate("a number that has been in a race already")
        low, high = self.interval
        return low, high

    def _changed(
        self, undo: Callable[[float], float], rising: bool, form: Form | None = None
    ) -> Unknown:
        """Another function of the same u. undo: converts its value back to this number's value."""
        before = self.inverse
        return Unknown(
            self.chance,
            self.interval,
            lambda value: before(undo(value)),
            self.rising == rising,
            form,
        )

    def __lt__(self, value: Any) -> Any:
        """Compare with a number; for an array, NumPy compares each of its entries."""
        return NotImplemented if _is_array(value) else self._is_below(value)

    def __le__(self, value: Any) -> Any:
        """Like `<`, because equality has probability 0."""
        return NotImplemented if _is_array(value) else self._is_below(value)

    def __gt__(self, value: Any) -> Any:
        """Compare with a number; for an array, NumPy compares each of its entries."""
        return NotImplemented if _is_array(value) else self._is_above(value)

    def __ge__(self, value: Any) -> Any:
        """Like `>`, because equality has probability 0."""
        return NotImplemented if _is_array(value) else self._is_above(value)

    def _is_below(self, value: Any) -> bool:
        """Whether the number is below a value; False for NaN."""
        return not math.isnan(float(value)) and self._below(value)

    def _is_above(self, value: Any) -> bool:
        """Whether the number is above a value; False for NaN."""
        return not math.isnan(float(value)) and not self._below(value)

    def __mul__(self, factor: Any) -> Any:
        """The number times a factor; a factor of 0 gives a known 0."""
        if _is_array(factor):
            return NotImplemented
        scale = float(factor)
        if scale == 0:
            return 0.0
        if math.isinf(scale):
            raise CannotEnumerate("a random number times infinity")
        form = self.form and self.form.times(scale)
        return self._changed(lambda value: value / scale, scale > 0, form)

    __rmul__ = __mul__

    def __truediv__(self, factor: Any) -> Any:
        """The number divided by another one; division by 0 gives infinity."""
        if _is_array(factor):
            return NotImplemented
        divisor = float(factor)
        if divisor == 0:
            return math.inf if self._is_positive() else self * -math.inf
        return self * (1 / divisor)

    def __rtruediv__(self, number: Any) -> Any:
        """Another number divided by this one, if this one cannot be negative."""
        if _is_array(number):
            return NotImplemented
        dividend = float(number)
        if not self._is_positive():
            raise CannotEnumerate("division by a random number that may be negative")
        if dividend == 0:
            return 0.0
        form = self.form and self.form.inverted()

        def undo(value: float) -> float:
            """Convert the quotient back to the divisor."""
            quotient = value / dividend
            return 1 / quotient if quotient > 0 else math.inf

        return self._changed(undo, dividend < 0, form and form.times(dividend))

    def _is_positive(self) -> bool:
        """Whether the number is certainly above 0."""
        return self.form is not None and self.form.kind in ("uniform", "time", "speed")

    def __add__(self, other: Any) -> Any:
        """The number plus another one; adding infinity gives a known sum."""
        if _is_array(other):
            return NotImplemented
        shift = float(other)
        if math.isinf(shift):
            return shift
        return self._changed(lambda value: value - shift, True, self.form and self.form.plus(shift))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        """The number minus another one."""
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        """Another number minus this one."""
        return self * -1 + other

    def __neg__(self) -> Any:
        """Minus the number."""
        return self * -1

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Make NumPy scalars and np.log use the operators of this class."""
        if ufunc is np.log:
            return self.log()
        if ufunc is np.log1p:
            return (self + 1).log()
        if ufunc not in OPERATORS:
            raise CannotEnumerate(ufunc.__name__)
        if any(isinstance(x, np.ndarray) and x.ndim for x in inputs):  # number by number
            return ufunc(*(_boxed(x) for x in inputs))
        return OPERATORS[ufunc](*(x if isinstance(x, Unknown) else float(x) for x in inputs))

    def __array_function__(self, function: Any, kinds: Any, given: Any, options: Any) -> Any:
        """Make `np.searchsorted` compare the number with the sorted numbers one by one."""
        if function is not np.searchsorted:
            return function._implementation(*given, **options)
        return _place(*given, **options)

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, given: Any = (), options: Any = None) -> Any:
        """Raise; only the mode that follows Torch code can combine unknown numbers with tensors."""
        raise CannotEnumerate(f"torch.{func.__name__}")

    def log(self) -> Unknown:
        """The number's logarithm, which can still take part in a race."""
        form = self.form and self.form.log()
        return self._changed(lambda value: math.exp(min(value, 700.0)), True, form)

    def log1p(self) -> Any:
        """The logarithm of 1 plus the number."""
        return (self + 1).log()

    def item(self) -> Unknown:
        """The number itself, like `item` of a NumPy scalar."""
        return self

    def __float__(self) -> float:
        """Raise: the value is unknown, so it cannot be followed."""
        raise CannotEnumerate("the value of a random number")

    __int__ = __index__ = __float__

    def __bool__(self) -> bool:
        """Raise: whether the number is 0 cannot be followed."""
        raise CannotEnumerate("the truth of a random number")

    def __eq__(self, other: object) -> bool:
        """Raise: equality with a random number cannot be followed."""
        raise CannotEnumerate("equality with a random number")

    __hash__ = object.__hash__


class Numbers(np.ndarray[Any, Any]):
    """An array of unknown numbers that supports argmax and argmin."""

    def argmax(  # type: ignore[override]
        self, axis: Any = None, out: None = None, *, keepdims: bool = False
    ) -> Any:
        """The index of the largest number, decided as a race."""
        return self._winners("argmax", axis, keepdims)

    def argmin(  # type: ignore[override]
        self, axis: Any = None, out: None = None, *, keepdims: bool = False
    ) -> Any:
        """The index of the smallest number, decided as a race."""
        return self._winners("argmin", axis, keepdims)

    def _winners(self, end: str, axis: Any, keepdims: bool) -> Any:
        """Race the numbers along an axis, or all of them."""
        if self.dtype != object:
            plain = np.asarray(self)
            return getattr(plain, end)(axis=axis, keepdims=keepdims)
        if axis is None:
            return race(np.asarray(self).ravel().tolist(), end)
        rows = np.moveaxis(np.asarray(self), axis, -1)
        found = np.empty(rows.shape[:-1], dtype=np.int64)
        for place in np.ndindex(found.shape):
            found[place] = race(rows[place].tolist(), end)
        if keepdims:
            return np.expand_dims(found, axis)
        return found if found.ndim else int(found)


def numbers(shape: Any, make: Callable[[], Any]) -> Numbers:
    """An array of this shape with a new unknown number at each place."""
    made = np.empty(shape, dtype=object)
    for place in np.ndindex(made.shape):
        made[place] = make()
    return made.view(Numbers)


def race(options: Sequence[Any], end: str) -> int:
    """The index of the largest ("argmax") or smallest ("argmin") of independent numbers.

    Options that can never win (0 / noise, log 0 + noise) are known numbers. If there are only such
    options, the first best one wins, as in NumPy.
    """
    runners = [option for option in options if isinstance(option, Unknown)]
    if not runners:
        best = max if end == "argmax" else min
        return list(options).index(best(options))
    forms = [runner.form for runner in runners]
    kinds = {form.kind if form else "" for form in forms}
    kind = kinds.pop()
    is_race = not kinds and kind in FIRST_ARRIVAL[end]
    fresh = all(runner.interval == [0.0, 1.0] for runner in runners)
    alone = len({id(runner.interval) for runner in runners}) == len(runners)
    if not (is_race and fresh and alone):
        raise CannotEnumerate(f"{end} of random numbers that are no race")
    rates = []
    for option in options:
        if isinstance(option, Unknown):
            rates.append(max(option.form.rate, 0.0) if option.form else 0.0)
        elif option == NEVER[kind] or (kind == "speed" and option <= 0):
            rates.append(0.0)
        else:
            raise CannotEnumerate(f"{end} of random numbers and others")
    if max(rates) == 0:
        raise CannotEnumerate(f"{end} of negative random numbers")
    for runner in runners:
        runner.interval.clear()
    return runners[0].chance.pick(rates)


def _is_array(value: Any) -> bool:
    """Whether a value is an array, whose entries are then compared one by one."""
    return bool(getattr(value, "ndim", 0))


def _boxed(value: Any) -> Any:
    """A value, which may be an unknown number, as an array of objects."""
    if not isinstance(value, Unknown):
        return np.asarray(value).astype(object)
    box = np.empty((), dtype=object)
    box[()] = value
    return box


def _place(a: Any, v: Any, side: str = "left", sorter: None = None) -> int:
    """`np.searchsorted` for an unknown number: its index among sorted numbers."""
    if sorter is not None or not isinstance(v, Unknown):
        raise CannotEnumerate("searchsorted with a sorter, or among random numbers")
    is_before = operator.le if side == "left" else operator.lt
    edges = np.asarray(a).tolist()
    return next((i for i, edge in enumerate(edges) if is_before(v, edge)), len(edges))
