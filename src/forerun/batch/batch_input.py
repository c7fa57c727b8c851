"""The input of a batch job: lines of JSON or rows of Parquet, read as requests.

A line is in OpenAI's batch format (`custom_id`, `method`, `url`, `body`), or is just a body with a
`prompt` or `messages`. An invalid line becomes a `BadLine` and does not stop the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.batch.lines import BadLine, BatchRequest, seed_of
from forerun.batch.parquet import parquet_rows
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.objects import parse_object

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
BATCH_KEYS = frozenset({"custom_id", "method", "url", "body"})
BOM = b"\xef\xbb\xbf"
LONGEST_ID = 512  # characters of a custom_id


@dataclass(frozen=True)
class Input:
    """A file of requests; iterating over it reads it from the beginning.

    seed: of the job. A line without a seed gets one derived from this and its `custom_id` or line
    number, so it does not depend on when, where or beside what it runs.
    defaults: fields for bare prompts and messages that lack them.
    """

    path: Path
    seed: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet, by its suffix."""
        return self.path.suffix.lower() in (".parquet", ".pq")

    def digest(self) -> str:
        """A hash of the file's bytes."""
        digest = blake2b(digest_size=16)
        try:
            with self.path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            wrong = f"The input cannot be read ({error.strerror})."
            cure = "Name a file of JSON lines, or one that ends in .parquet."
            raise InputError(explain(wrong, repr(str(self.path)), cure)) from error
        return digest.hexdigest()

    def __len__(self) -> int:
        count = sum(1 for _ in self._rows())
        if not count:
            cure = 'Write one request per line, {"prompt": "..."} for example.'
            raise InputError(explain("The input holds no line.", repr(str(self.path)), cure))
        return count

    def __iter__(self) -> Iterator[BatchRequest | BadLine]:
        lines_by_id: dict[str, int] = {}
        for index, (number, raw) in enumerate(self._rows()):
            line = self._parse(index, number, raw)
            if line.custom_id is not None:
                first = lines_by_id.setdefault(line.custom_id, number)
                if first != number and isinstance(line, BatchRequest):
                    message = f"Line {number} repeats the custom_id of line {first}."
                    line = BadLine(index, number, line.custom_id, "duplicate_custom_id", message)
            yield line

    def _rows(self) -> Iterator[tuple[int, bytes]]:
        rows = parquet_rows(self.path) if self.is_parquet else _json_lines(self.path)
        return islice(rows, self.limit)

    def _parse(self, index: int, number: int, raw: bytes) -> BatchRequest | BadLine:
        custom_id: str | None = None
        try:
            row = _object(raw)
            is_batch = "body" in row or "url" in row or "method" in row
            custom_id = _custom_id(row, number, is_required=is_batch)
            url, body = _openai(row) if is_batch else (None, self._bare(row))
        except _LineError as error:
            message = f"Line {number} {error.reason}"
            return BadLine(index, number, custom_id, error.code, message)
        if body.get("seed") is None:
            body = {**body, "seed": seed_of(self.seed, custom_id)}
        return BatchRequest(index, number, custom_id, url, body)

    def _bare(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        if ("prompt" in row) == ("messages" in row):
            what = "both 'prompt' and 'messages'" if "prompt" in row else "neither"
            reason = f"must have either 'prompt' or 'messages', or be a batch line; it has {what}."
            raise _LineError("invalid_request", reason)
        if isinstance(row.get("prompt"), str) and not row["prompt"].strip():
            raise _LineError("invalid_request", "has an empty prompt. Write a text into it.")
        return {**self.defaults, **{key: row[key] for key in row if key != "custom_id"}}


class _LineError(Exception):
    """The reason why a line is not a request, as the rest of a sentence that begins with
    "Line 7"."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def _json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if stripped := line.removeprefix(BOM if number == 1 else b"").strip():
                yield number, stripped


def _object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a line; raises `_LineError` if there is none."""
    try:
        return parse_object(raw)
    except ApiError as error:
        reason = error.message.removeprefix("The body ")
        raise _LineError("invalid_json_line", reason) from error


def _custom_id(row: Mapping[str, Any], number: int, *, is_required: bool) -> str:
    """The line's `custom_id`; if it has none and needs none, one made from its line number."""
    if row.get("custom_id") is None and not is_required:
        return f"line-{number}"
    custom_id = row.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
        received = json.dumps(custom_id)[:80]
        reason = f"has no custom_id of 1 to {LONGEST_ID} characters. Received {received}."
        raise _LineError("invalid_custom_id", reason)
    return custom_id


def _openai(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The url and the body of a line in OpenAI's batch format."""
    method, url, body = row.get("method"), row.get("url"), row.get("body")
    if unknown := sorted(row.keys() - BATCH_KEYS):
        reason = f"has keys that a batch line has not: {', '.join(map(repr, unknown))[:80]}."
        raise _LineError("invalid_request", reason)
    if method != "POST":
        reason = f"has an unknown method. Received {json.dumps(method)[:40]}. Use POST."
        raise _LineError("invalid_method", reason)
    if url not in URLS:
        reason = f"has an unknown url. Received {json.dumps(url)[:80]}. Use {', '.join(URLS)}."
        raise _LineError("invalid_url", reason)
    if not isinstance(body, Mapping):
        reason = f"has a body that is no object. Received {json.dumps(body)[:40]}."
        raise _LineError("invalid_body", reason)
    return url, body
