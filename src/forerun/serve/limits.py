"""How much one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on requests and on patience, all of them on the server's side."""

    max_body_bytes: int = 4 * 2**20
    max_new_tokens: int | None = None  # per choice; None: what the context holds
    max_choices: int = 128  # prompts x n
    max_stops: int = 16
    max_stop_chars: int = 1024
    max_logprobs: int = 20  # alternatives per token
    max_logit_bias: int = 1024  # entries
    max_timeout: float = 3600.0  # seconds that a request may ask for
    body_seconds: float = 30.0  # for a request's body to arrive
    reader_seconds: float = 30.0  # for a client to take in what it was sent
