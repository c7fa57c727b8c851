"""One line of a batch job: a request, or the reason why it is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

Begun = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Request:
    """One line to answer.  url None: a bare prompt or messages, whose route the model decides.

    begun: the tokens that each of its answers had when the job was stopped, to go on after.
    """

    index: int  # its place among the inputs, from 0
    number: int  # its line in the file, from 1
    custom_id: str
    url: str | None
    body: Mapping[str, Any]
    begun: Begun = ()


@dataclass(frozen=True)
class BadLine:
    """One line that cannot be answered, and why."""

    index: int
    number: int
    custom_id: str | None
    code: str
    message: str


def seed_of(seed: int, custom_id: str) -> int:
    """The seed of one line of a job."""
    digest = blake2b(f"{seed}\0{custom_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
