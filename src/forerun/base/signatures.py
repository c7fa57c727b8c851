"""Shows a call that is right to whoever calls a function with the wrong arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def shown_by(
    example: str,
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Add an example to Python's own error about the arguments of a call."""

    def with_example(
        function: Callable[Parameters, Returned],
    ) -> Callable[Parameters, Returned]:
        @wraps(function)
        def called(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
            try:
                return function(*args, **options)
            except TypeError as error:
                trace = error.__traceback__
                if trace is not None and trace.tb_next is None:  # the function was not entered
                    error.add_note(f"For example: {example}")
                raise

        return called

    return with_example
