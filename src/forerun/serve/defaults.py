"""What a request means that leaves sampling options out: the model's own values, else OpenAI's."""

from __future__ import annotations

from typing import Any

NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Fields of a transformers `generation_config` that stand for request fields."""


def defaults_of(target: Any) -> dict[str, float]:
    """The values of the model's `generation_config`, as far as it has any."""
    config = getattr(getattr(target, "model", None), "generation_config", None)
    values = {name: getattr(config, name, None) for name in NAMES}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
