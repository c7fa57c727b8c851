"""The exceptions and warnings of the package, and an example of a call for wrong arguments.

Every message says what is wrong, what was received, and what to do about it, so code that raises
uses `explain` instead of a bare string.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

PACKAGE = str(Path(__file__).parents[1])
LOG = logging.getLogger("forerun")
LOG.addHandler(logging.NullHandler())  # a library logs nothing unless its user sets up logging


class ForerunError(Exception):
    """The base of all exceptions that Forerun raises on purpose."""


class InputError(ForerunError, ValueError):
    """An argument is invalid."""


class UnsupportedError(ForerunError):
    """A request is valid but cannot be fulfilled exactly, so it is refused with the reason."""


class MissingExtraError(ForerunError, ImportError):
    """An optional dependency is missing; the message contains the command that installs it."""


class EngineFullError(ForerunError, RuntimeError):
    """The queue is full; try again when some requests have finished."""


class GenerationError(ForerunError, RuntimeError):
    """A request failed while it was being answered.

    results: the results of all requests.  The failed one has the text so far, the `finish_reason`
    "error", and the reason in `error`.
    """

    def __init__(self, message: str, results: Any) -> None:
        super().__init__(message)
        self.results = results


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn the caller of the package, through `warnings` and through the log named "forerun".

    The warning points at the first line outside the package.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
    LOG.warning(message)


def notice(message: str) -> None:
    """Print a message to standard error, for example before slow work, and log it as "forerun".

    The record has the field `was_printed`, for a log that goes to standard error too.
    """
    print(f"forerun: {message}", file=sys.stderr, flush=True)
    LOG.info(message, extra={"was_printed": True})


def ends_process(error: BaseException) -> bool:
    """Whether an exception raised in a user's code is Ctrl-C or an exit that must end the process.

    Signals arrive only in the main thread. In any other thread, the user's code raised the
    exception.
    """
    is_exit = isinstance(error, KeyboardInterrupt | SystemExit)
    return is_exit and threading.current_thread() is threading.main_thread()


def shown(value: object, as_text: Callable[[Any], str] = repr) -> str:
    """A value as text for a message. If it cannot be written, or is a very long number, its type
    instead."""
    if isinstance(value, int) and abs(value) >> 128:
        return f"a whole number of {value.bit_length()} bits"
    try:
        return as_text(value)
    except BaseException as error:
        if ends_process(error):
            raise
        return f"a {type(value).__name__} that cannot be shown"


def explain(wrong: str, received: object, cure: str) -> str:
    """An error message: what is wrong, what was received, and what to do."""
    return f"{wrong} Received {shown(received, str)}. {cure}"


def meant(name: str, known: Iterable[str]) -> str:
    """A "Did you mean ...?" to append to a message about an unknown name; empty if no known name is
    similar.  Capitals make no difference."""
    folded = {one.casefold(): one for one in known}
    alike = get_close_matches(name.casefold(), folded, 1, cutoff=0.7)
    return f" Did you mean {folded[alike[0]]}?" if alike else ""


def wrong_type(name: str, value: object, cure: str) -> InputError:
    """The error for an argument of a wrong type."""
    received = f"the {type(value).__name__} {shown(value):.80}"
    return InputError(explain(f"{name} has a wrong type.", received, cure))


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def shown_by(
    example: str,
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """A decorator that appends `example` to Python's own TypeError about wrong arguments."""

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
