"""Sizes of models in words."""

from __future__ import annotations


def size_name(num_parameters: int) -> str:
    """135000000 -> "135M parameters\""""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if num_parameters >= size:
            return f"{num_parameters / size:.3g}{unit} parameters"
    return f"{num_parameters} parameters"
