"""One exception family.

Every message says what is wrong, what was received, and what to do about it, so
`raise` sites use :func:`explain` rather than a bare string.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parents[1])
LOG = logging.getLogger("forerun")
LOG.addHandler(logging.NullHandler())  # a library is silent unless its user sets up logging


class ForerunError(Exception):
    """Base of everything Forerun raises on purpose."""


class InputError(ForerunError, ValueError):
    """The caller passed something that has no meaning here."""


class UnsupportedError(ForerunError):
    """Well formed, but it cannot be honoured exactly, so it is refused by name."""


class MissingExtraError(ForerunError, ImportError):
    """An optional dependency is needed; the message names the install command."""


class EngineFullError(ForerunError, RuntimeError):
    """As many requests wait as may; try again when some have finished."""


class GenerationError(ForerunError, RuntimeError):
    """A request failed while it was being answered.

    results: what `generate` would have returned, the failed request included as far as it got:
    its `finish_reason` is "error" and its `error` the reason.
    """

    def __init__(self, message: str, results: Any) -> None:
        super().__init__(message)
        self.results = results


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Tell the caller of the package, through `warnings` and through the log named "forerun"."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
    LOG.warning(message)


def notice(message: str) -> None:
    """Say on standard error what takes long, and in the log named "forerun"."""
    print(f"forerun: {message}", file=sys.stderr, flush=True)
    LOG.info(message)


def ends_process(error: BaseException) -> bool:
    """Whether an exception that left somebody's code is Ctrl-C or an exit of the whole process.

    Signals arrive in the main thread only: in any other, that code has raised it by itself.
    """
    is_exit = isinstance(error, KeyboardInterrupt | SystemExit)
    return is_exit and threading.current_thread() is threading.main_thread()


def shown(value: object, as_text: Callable[[Any], str] = repr) -> str:
    """A value in a message; one that cannot be written, or is too long a number, by its type."""
    if isinstance(value, int) and abs(value) >> 128:
        return f"a whole number of {value.bit_length()} bits"
    try:
        return as_text(value)
    except BaseException as error:
        if ends_process(error):
            raise
        return f"a {type(value).__name__} that cannot be shown"


def explain(wrong: str, received: object, cure: str) -> str:
    """The three parts of a useful message, in the order a reader needs them."""
    return f"{wrong} Received {shown(received, str)}. {cure}"


def meant(name: str, known: Iterable[str]) -> str:
    """A question to add to a message about an unknown name: the known one that is most like it."""
    alike = get_close_matches(name, list(known), 1, cutoff=0.7)
    return f" Did you mean {alike[0]}?" if alike else ""


def wrong_type(name: str, value: object, cure: str) -> InputError:
    received = f"the {type(value).__name__} {shown(value):.80}"
    return InputError(explain(f"{name} has a wrong type.", received, cure))
