"""Routes that need no engine: the list of models, token counts, the description of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Query(Protocol):
    """A question that is answered at once."""

    path: str  # Starlette's pattern
    method: str  # GET or POST

    def answer(self, body: Mapping[str, Any], **path_parameters: str) -> Mapping[str, Any]:
        """The body of the answer, or an `ApiError`; the body of a GET is empty."""
        ...
