"""Many small cases as one test: thousands of tests cost more than what they check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from forerun.base.errors import shown


def for_all(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Run a test for every value of an argument, in one test that names the case that fails.

    For cases without fixtures that a case uses up, such as a folder or a captured output.
    """
    listed = list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**others: Any) -> None:
            for value in listed:
                try:
                    test(**others, **{name: value})
                except BaseException as error:
                    error.add_note(f"{name} = {shown(getattr(value, 'name', value))}")
                    raise

        own = signature(test)
        left: list[Parameter] = [one for key, one in own.parameters.items() if key != name]
        run.__signature__ = own.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
