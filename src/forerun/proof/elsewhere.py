"""Follows code that draws from global generators instead of the one it is given.

While outcomes are followed, NumPy's global generator, `np.random.default_rng()` without a seed,
Python's `random` and Torch's generators are replaced by a `Chance`; afterwards they are restored.
Only the thread in which outcomes are followed is affected.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from forerun.proof.branches import CannotEnumerate
from forerun.proof.chance import Chance

OLD_NAMES: dict[str, Callable[..., Any]] = {
    "rand": lambda chance, *shape: chance.random(shape or None),
    "random_sample": lambda chance, size=None: chance.random(size),
    "ranf": lambda chance, size=None: chance.random(size),
    "sample": lambda chance, size=None: chance.random(size),
    "randint": lambda chance, low, high=None, size=None: chance.integers(low, high, size),
}
"""Functions of numpy.random that a Generator has under another name."""

Answer = Callable[..., Any]
"""A function that replaces one that draws. It receives the `Chance`, the real function and the
function's arguments."""
TORCHS = ("manual_seed", "seed", "Generator")
"""Names of Torch that make or seed a generator. Code that uses them cannot be followed."""
PYTHONS = ("random", "uniform", "choices", "choice", "randint", "sample", "shuffle", "seed")
"""Functions of Python's `random` that are replaced while the outcomes of code are listed."""


class Elsewhere:
    """Replaces global generators, while outcomes are followed."""

    def __init__(self) -> None:
        """Start without a path to follow."""
        self._chance: Chance | None = None
        self._owner = threading.get_ident()
        self.was_asked = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block, replace the global generators."""
        with ExitStack() as undone:
            for name in _global_names():
                self._replace(undone, np.random, name, _numpy_answer(name))
            self._replace(undone, np.random, "default_rng", _fresh_generator)
            for name in PYTHONS:
                self._replace(undone, random, name, _python_answer(name))
            torch = sys.modules.get("torch")
            for name in TORCHS if torch else ():
                self._replace(undone, torch, name, _refusal(f"torch.{name}"))
            yield

    @contextmanager
    def answered_by(self, chance: Chance) -> Iterator[None]:
        """Within the block, draws from global generators in this thread are answered by
        `chance`."""
        self._chance = chance
        try:
            if "torch" not in sys.modules:
                yield
                return
            from forerun.proof.tensors import FollowedTensors

            with FollowedTensors(chance):
                yield
        finally:
            self._chance = None
            self.was_asked = self.was_asked or chance.is_followed_elsewhere

    def _replace(self, undone: ExitStack, module: Any, name: str, answer: Answer) -> None:
        """Replace a function of a module by `answer`, for this thread only; `undone` restores
        it."""
        real = getattr(module, name)

        def asked(*given: Any, **how: Any) -> Any:
            """Call `answer` if a path is being followed in this thread, else the real function."""
            if self._chance is None or threading.get_ident() != self._owner:
                return real(*given, **how)
            return answer(self._chance, real, *given, **how)

        setattr(module, name, asked)
        undone.callback(setattr, module, name, real)


@contextmanager
def kept_as_they_are(seed: int) -> Iterator[None]:
    """Within the block, global generators start from a seed; afterwards their state is restored."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch else None
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    if torch:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        if torch:
            torch.set_rng_state(torch_state)


def _global_names() -> list[str]:
    """The functions of numpy.random that read or set the global generator."""
    kinds = dir(np.random.RandomState)
    return [name for name in kinds if not name.startswith("_") and hasattr(np.random, name)]


def _numpy_answer(name: str) -> Answer:
    """The replacement of a function of NumPy's global generator, under its old or new name."""

    def answer(chance: Chance, real: Any, *given: Any, **how: Any) -> Any:
        """Ask the path that is followed."""
        chance.is_followed_elsewhere = True
        if name in OLD_NAMES:
            return OLD_NAMES[name](chance, *given, **how)
        return getattr(chance, name)(*given, **how)

    return answer


def _fresh_generator(chance: Chance, real: Any, seed: Any = None) -> Any:
    """The replacement of `default_rng`: without a seed it returns the `Chance`, with a seed a real
    generator."""
    return chance if seed is None else real(seed)


def _python_answer(name: str) -> Answer:
    """The replacement of a function of Python's `random`; most of them cannot be followed.

    Those that give one uniform number can be, because they behave like `rng.random()`.
    """

    def answer(chance: Chance, real: Any, *given: Any, **how: Any) -> Any:
        """Ask the path that is followed."""
        if name not in ("random", "uniform"):
            raise CannotEnumerate(f"random.{name}")
        chance.is_followed_elsewhere = True
        return getattr(chance, name)(*given, **how)

    return answer


def _refusal(name: str) -> Answer:
    """The replacement of a source of randomness that cannot be followed."""

    def answer(chance: Chance, real: Any, *given: Any, **how: Any) -> Any:
        """Raise, because this case cannot be followed."""
        raise CannotEnumerate(name)

    return answer
