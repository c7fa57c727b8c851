"""Old names of public classes: they still work, and warn with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module: it returns the class under its new name and warns.

    new_names: old name -> new name, both of `module`.
    """

    def __getattr__(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = new_names[name]
        warning = f"{module}.{name} is now called {new}; the old name will be removed."
        warnings.warn(warning, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return __getattr__
