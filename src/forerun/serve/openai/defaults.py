"""What a request means that leaves sampling options out: the model's own values, else OpenAI's."""

from __future__ import annotations

from typing import Any

from forerun.models.base import generation_defaults


def defaults_of(target: Any) -> dict[str, float]:
    """The values of the model's `generation_config`, as far as it has any."""
    stated = getattr(target, "generation_defaults", None)
    return generation_defaults(getattr(target, "model", None)) if stated is None else stated
