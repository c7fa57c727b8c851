"""One exception family.

Every message says what is wrong, what was received, and what to do about it, so
`raise` sites use :func:`explain` rather than a bare string.
"""

from __future__ import annotations


class ForerunError(Exception):
    """Base of everything Forerun raises on purpose."""


class InputError(ForerunError, ValueError):
    """The caller passed something that has no meaning here."""


class UnsupportedError(ForerunError):
    """Well formed, but it cannot be honoured exactly, so it is refused by name."""


class MissingExtraError(ForerunError, ImportError):
    """An optional dependency is needed; the message names the install command."""


def explain(wrong: str, received: object, cure: str) -> str:
    """The three parts of a useful message, in the order a reader needs them."""
    return f"{wrong} Received {received}. {cure}"
