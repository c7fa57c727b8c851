"""A stand-in for numpy.random.Generator with which every outcome of ordinary NumPy code is
followed.

`rng.random()` returns an unknown number, and nearly every verifier only compares it. Choices are
followed option by option. Invalid arguments raise NumPy's own error, because a real generator is
called with them first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.base.errors import explain
from forerun.proof.branches import CannotEnumerate, Path
from forerun.proof.unknown import ROUNDING, Unknown, numbers

MANY = 1000
"""A question with more possible answers than this is not followed."""

MANY_QUESTIONS = 150
"""A round that asks more questions than this is given up: it probably contains a loop that runs
until it succeeds."""

REAL = np.random.default_rng(0)
"""A real generator that is called first, so that it checks the arguments; its numbers are not
used."""

FORMATS = {24: "float32", 11: "float16", 8: "bfloat16"}
"""Number formats by the bits of their significands."""

DOUBLE = 53  # bits of a float64's significand

NO_RNG = explain(
    "The function draws random numbers from somewhere else than its rng, NumPy's or Torch's "
    "global generator.",
    "other tokens for the same draft and rng",
    "Draw with rng.random() and rng.choice() in place of a generator of its own; "
    "in Python, certify(function, method='sampled') tests it as it is.",
)
"""The error for a function whose random numbers come from a place that cannot be watched."""


@dataclass
class Precision:
    """The number format in which the tested code computes, inferred from the numbers that it
    compares random ones with."""

    finest: int = 0  # of all numbers that were met
    coarsest_tensor: int = DOUBLE

    @property
    def bits(self) -> int:
        """The number of significant bits of that format.

        Among many float32 numbers some need nearly all 24 bits. If all numbers are simple, such as
        1/2, nothing is known and float64 is assumed.
        """
        likely = (bits for bits in FORMATS if bits - 3 < self.finest <= bits)
        return min(next(likely, DOUBLE), self.coarsest_tensor)

    def met(self, value: float) -> None:
        """Record a number that was compared; a float32 number has at most 24 significant bits,
        however it is stored."""
        if self.finest < DOUBLE and math.isfinite(value) and value:
            significand = int(abs(math.frexp(value)[0]) * 2**DOUBLE)
            zeros = (significand & -significand).bit_length() - 1
            self.finest = max(self.finest, DOUBLE - zeros)

    def met_tensor(self, bits: int) -> None:
        """Record a tensor that was compared, whose numbers have this many significant bits."""
        self.coarsest_tensor = min(self.coarsest_tensor, bits)


class Chance:
    """A random generator whose answers follow one path, and which keeps the path's probability."""

    def __init__(self, path: Path, weight: float = 1.0, precision: Precision | None = None) -> None:
        """Begin a path.

        path: the answers to give. weight: the probability of what happened before.
        """
        self.path = path
        self.weight = weight
        self.precision = precision or Precision()
        self.num_uses = 0  # questions asked by the code that was given this rng
        self.is_followed_elsewhere = False  # whether a global generator was asked

    def random(self, size: Any = None, *how: Any, **more: Any) -> Any:
        """Unknown numbers, uniform in [0, 1)."""
        return self._each("random", (size, *how), more, size, lambda: Unknown(self))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Unknown numbers, uniform in [low, high)."""
        start, width = _number(low), _number(high) - _number(low)
        return self._each(
            "uniform", (low, high, size), {}, size, lambda: Unknown(self) * width + start
        )

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        """Unknown exponential numbers (arrival times) with mean `scale`."""
        by = _number(scale)
        return self._each(
            "exponential", (scale, size), {}, size, lambda: Unknown.arrival(self) * by
        )

    def standard_exponential(self, size: Any = None) -> Any:
        """Unknown exponential numbers with mean 1."""
        return self.exponential(1.0, size)

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """Unknown Gumbel numbers, which are minus the logarithms of exponential ones."""
        shift, by = _number(loc), _number(scale)

        def gumbel() -> Any:
            """One unknown Gumbel number."""
            return -Unknown.arrival(self).log() * by + shift

        return self._each("gumbel", (loc, scale, size), {}, size, gumbel)

    def choice(
        self, a: Any, size: Any = None, replace: bool = True, p: Any = None, **how: Any
    ) -> Any:
        """One or several of the options in a (or range(a)), with probabilities p."""
        self.num_uses += 1
        count = _few(int(a) if np.ndim(a) == 0 else len(a), "options to choose from")
        REAL.choice(a, size, replace, p, **how)
        options = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        if options.ndim != 1 or not how.get("shuffle", True):
            raise CannotEnumerate("choice among rows, or unshuffled")
        chances = [1 / count] * count if p is None else np.asarray(p).tolist()
        if size is None:
            return options[self.pick(chances)]
        _few(math.prod(np.atleast_1d(size).tolist()), "choices at once")
        places = self.picks(chances, np.empty(size).size, replace)
        return options[np.array(places, dtype=np.int64).reshape(size)]

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, **how: Any
    ) -> Any:
        """Whole numbers in [low, high); each possible value is followed."""
        self.num_uses += 1
        REAL.integers(low, high, size, dtype, **how)
        start, stop = (0, int(low)) if high is None else (int(low), int(high))
        count = _few(stop - start + int(how.get("endpoint", False)), "integers to choose from")
        if size is None:
            return dtype(start + self.pick([1 / count] * count))
        _few(math.prod(np.atleast_1d(size).tolist()), "integers at once")
        places = self.picks([1 / count] * count, np.empty(size).size)
        return np.array(places, dtype=dtype).reshape(size) + start

    def multinomial(self, n: Any, pvals: Any, size: None = None) -> Any:
        """How often each option was chosen in n draws."""
        self.num_uses += 1
        REAL.multinomial(n, pvals, size)
        if size is not None or np.ndim(pvals) != 1:
            raise CannotEnumerate("multinomial with a size")
        chances = np.array(pvals, dtype=np.float64)
        chances[-1] = max(0.0, 1 - chances[:-1].sum())
        return np.bincount(self.picks(chances.tolist(), int(n)), minlength=len(chances))

    def binomial(self, n: Any, p: Any, size: None = None) -> int:
        """A single coin: 1 with probability p."""
        self.num_uses += 1
        REAL.binomial(n, p, size)
        if size is not None or np.ndim(p) or int(n) != 1:
            raise CannotEnumerate("binomial of several coins")
        return int(self.split(float(p)))

    def picks(self, chances: list[float], count: int, replace: bool = True) -> list[int]:
        """The indices of several options, chosen one after another."""
        left, places = list(chances), list[int]()
        for _ in range(count):
            places.append(self.pick(left))
            if not replace:
                left[places[-1]] = 0.0
        return places

    def pick(self, chances: list[float]) -> int:
        """The index of an option, chosen by its probability; impossible options are not
        followed."""
        possible = [index for index, chance in enumerate(chances) if chance > 0]
        if not possible:
            raise CannotEnumerate("a choice among options of chance 0")
        index = possible[self.ask(len(possible))] if len(possible) > 1 else possible[0]
        for chance in chances:
            self.precision.met(chance)
        self.weight *= chances[index] / math.fsum(chances)
        return index

    def split(self, chance: float) -> bool:
        """True with the given probability; if the outcome is certain, no branch is made."""
        if chance <= ROUNDING or chance >= 1 - ROUNDING:
            return chance > 0.5
        answer = bool(self.ask(2))
        self.weight *= chance if answer else 1 - chance
        return answer

    def ask(self, num_options: int) -> int:
        """The answer to the next question of this path; raises if there were too many questions."""
        if len(self.path.options) >= MANY_QUESTIONS:
            raise CannotEnumerate(f"more than {MANY_QUESTIONS} random numbers in one round")
        return self.path.ask(num_options)

    def _each(self, name: str, given: Any, more: Any, size: Any, make: Any) -> Any:
        """One number made by `make`, or an array of them, after NumPy has checked the arguments."""
        self.num_uses += 1
        if size is None:
            getattr(REAL, name)(*given, **more)
            return make()
        _few(math.prod(np.atleast_1d(size).tolist()), "numbers at once")
        getattr(REAL, name)(*given, **more)
        return numbers(size, make)

    def __getattr__(self, name: str) -> Any:
        """Raise for every other method of a generator, because it cannot be followed."""
        raise CannotEnumerate(name)


def _number(value: Any) -> float:
    """An argument as a single number; arrays of parameters cannot be followed."""
    if np.ndim(value):
        raise CannotEnumerate("random numbers of several scales")
    return float(value)


def _few(count: int, what: str) -> int:
    """The count; raises if there are too many outcomes to list."""
    if count > MANY:
        raise CannotEnumerate(f"{count:,} {what}")
    return count
