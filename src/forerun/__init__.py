"""Forerun: speculative decoding that keeps the target's distribution, and proves it."""

from typing import TYPE_CHECKING

import forerun.base.ctrl_c as ctrl_c  # first, because the others take a second

if (
    not TYPE_CHECKING and ctrl_c.is_command()
):  # it answers sooner where a subcommand imports only what it needs
    from importlib import import_module
    from importlib.util import find_spec

    def __getattr__(name: str) -> object:
        """A part of the package, or a public name, imported when it is first asked for."""
        if find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        return getattr(import_module(f"{__name__}.public"), name)

else:
    from forerun.public import *  # noqa: F403
    from forerun.public import __all__ as __all__
    from forerun.public import __version__ as __version__

    def __dir__() -> list[str]:
        """The names that are meant for others; the package's own modules are left out."""
        return __all__


ctrl_c.end()
