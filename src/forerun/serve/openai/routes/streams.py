"""`stream_options`, of the routes that stream chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Flag
from forerun.serve.openai.objects import Field, Object


def stream_options() -> Field:
    table = {
        "include_usage": Field(Flag(), "A last chunk with the counts.", False),
        "continuous_usage_stats": Field(
            Flag(), "The counts so far in every chunk too; with include_usage.", False
        ),
        "include_obfuscation": Field(Choice((False,)), "Chunks are not padded.", False),
    }
    return Field(Object(table), "Only with stream.")


def counts_of(fields: Mapping[str, Any]) -> dict[str, bool]:
    """What counts an `Ask` wants; options without what they are options of are refused."""
    options = fields["stream_options"]
    if options is None:
        return {}
    if not fields["stream"]:
        message = "'stream_options' has a meaning only where 'stream' is true."
        raise ApiError(message, param="stream_options", code="invalid_value")
    if options["continuous_usage_stats"] and not options["include_usage"]:
        name = "stream_options.continuous_usage_stats"
        message = f"'{name}' has a meaning only where 'include_usage' is true."
        raise ApiError(message, param=name, code="invalid_value")
    return {
        "includes_usage": options["include_usage"],
        "counts_in_chunks": options["continuous_usage_stats"],
    }
