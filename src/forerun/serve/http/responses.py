"""JSON answers and errors as HTTP responses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from forerun.serve.admission.errors import ApiError


def encoded(content: Mapping[str, Any]) -> bytes:
    """Compact JSON, which has neither NaN nor infinities."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


def json_response(content: Mapping[str, Any], status: int = 200) -> Response:
    return Response(encoded(content), status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    response = json_response(error.body(), error.status)
    if error.retry_after is not None:
        response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
