"""The lines of a batch job: requests, invalid lines, and lines of output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from forerun.serve.admission.errors import ApiError

Begun = Sequence[Sequence[int]]


@dataclass(frozen=True)
class BatchRequest:
    """A line to answer.

    url: None for a bare prompt or messages, whose route depends on the model.
    begun: the tokens that each of its answers had when the job was stopped.
    """

    index: int  # its place among the inputs, from 0
    number: int  # its line in the file, from 1
    custom_id: str
    url: str | None
    body: Mapping[str, Any]
    begun: Begun = ()


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be answered, and the reason."""

    index: int
    number: int
    custom_id: str | None
    code: str
    message: str


def seed_of(seed: int, custom_id: str) -> int:
    """The seed of one line of a job."""
    digest = blake2b(f"{seed}\0{custom_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


OutputLine = dict[str, Any]
VOLATILE = ("speculation", "prompt_tokens_details", "input_tokens_details")
"""Fields of `usage` that depend on when a request runs."""


def request_id_of(request: BatchRequest) -> str:
    """An id for a request that is the same in every run."""
    text = f"{request.body['seed']}\0{request.custom_id}"
    return blake2b(text.encode(), digest_size=12).hexdigest()


def answered(request: BatchRequest, body: Mapping[str, Any]) -> OutputLine:
    """The output line of a request that was answered."""
    kept = {name: value for name, value in body["usage"].items() if name not in VOLATILE}
    return _responded(request, 200, {**body, "usage": kept})


def refused(request: BatchRequest, error: ApiError) -> OutputLine:
    """The output line of a request that a server would refuse, with the server's status."""
    return _responded(request, error.status, error.body())


def failed(line: BatchRequest | BadLine, code: str, message: str) -> OutputLine:
    """The output line of a request that could not be read, or whose worker died."""
    error = {"code": code, "message": message, "line": line.number, "param": None}
    name = f"batch_req_line_{line.number}"
    return {"id": name, "custom_id": line.custom_id, "response": None, "error": error}


def why_failed(line: Mapping[str, Any]) -> str | None:
    """The reason why a line has no answer; None if it has one."""
    if line["error"] is not None:
        return str(line["error"]["message"])
    response = line["response"]
    if response["status_code"] == 200:
        return None
    return str(response["body"]["error"]["message"])


def may_be_retried(line: Mapping[str, Any]) -> bool:
    """Whether the failure of a line was not its own fault."""
    if line["error"] is not None:
        return bool(line["error"]["code"] == "worker_died")
    return bool(line["response"]["status_code"] >= 500)


def first_text(body: Mapping[str, Any] | None) -> str | None:
    """The text of the first choice in a response body of any route; None if it was refused."""
    if body is None or body.get("error") is not None:
        return None
    if "output" in body:  # /v1/responses
        return "".join(part["text"] for item in body["output"] for part in item["content"])
    choice = body["choices"][0]
    text: str | None = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def _responded(request: BatchRequest, status: int, body: Mapping[str, Any]) -> OutputLine:
    name = request_id_of(request)
    response = {"status_code": status, "request_id": f"req_{name}", "body": body}
    return {
        "id": f"batch_req_{name}",
        "custom_id": request.custom_id,
        "response": response,
        "error": None,
    }
