"""`stream_options`, of the routes that stream chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.serve.errors import ApiError
from forerun.serve.fields import Choice, Flag
from forerun.serve.objects import Field, Object


def stream_options() -> Field:
    table = {
        "include_usage": Field(Flag(), "A last chunk with the counts.", False),
        "include_obfuscation": Field(Choice((False,)), "Chunks are not padded.", False),
    }
    return Field(Object(table), "Only with stream.")


def includes_usage(fields: Mapping[str, Any]) -> bool:
    """Whether the counts are asked for; options of a stream without one are refused."""
    options = fields["stream_options"]
    if options is not None and not fields["stream"]:
        message = "'stream_options' has a meaning only where 'stream' is true."
        raise ApiError(message, param="stream_options", code="invalid_value")
    return options is not None and bool(options["include_usage"])
