"""Spec-Bench prompts by task group, and the median of what was measured with them."""

from __future__ import annotations

import statistics

from forerun import prompts


def read(path: str | None, per_group: int) -> list[tuple[str, str]]:
    """(task group, first turn) of at most `per_group` prompts of each group; None: our own."""
    found = prompts.own() if path is None else prompts.read(path)
    return [(prompt.group, prompt.text) for prompt in prompts.pick(found, per_group)]


def summary(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0], "runs": len(values)}
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high, "runs": len(values)}
