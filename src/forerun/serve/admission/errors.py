"""Errors in OpenAI's format, without any details of the server's inside."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A refusal with its HTTP status; `code` is for programs and `message` for people."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind
        self.retry_after = retry_after  # seconds, for the header of the same name

    def body(self) -> dict[str, Any]:
        """The error as the JSON object that OpenAI's clients expect."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


RETRY_SECONDS = 5.0


def overloaded(message: str) -> ApiError:
    """The error for a request that is refused because the server has too much to do."""
    return ApiError(
        message, status=503, kind="server_error", code="overloaded", retry_after=RETRY_SECONDS
    )
