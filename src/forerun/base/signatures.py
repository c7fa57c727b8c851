"""Adds the example of a correct call to errors about wrong arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def shown_by(
    example: str,
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """A decorator that appends `example` to Python's own TypeError about the arguments of a
    call."""

    def with_example(
        function: Callable[Parameters, Returned],
    ) -> Callable[Parameters, Returned]:
        @wraps(function)
        def called(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
            try:
                return function(*args, **options)
            except TypeError as error:
                trace = error.__traceback__
                if trace is not None and trace.tb_next is None:  # raised by the call itself
                    error.add_note(f"For example: {example}")
                raise

        return called

    return with_example
