"""How large requests may be, and how slow their clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """What a connection may cost; what a request may ask for is for its route to say."""

    max_body_bytes: int = 4 * 2**20
    max_values: int = 2**18  # numbers in a body; others cost more: see `parse_object`
    body_seconds: float = 30.0  # for a body to arrive
    read_seconds: float = 10.0  # for a request to be read: parsed, tokenised, its grammar compiled
    score_seconds: float = 120.0  # for the log-probabilities of prompts
    word_seconds: float = 60.0  # for a whole answer to be put into words
    max_alternatives: int = 1_000_000  # choices x tokens x likeliest tokens beside each
    ping_seconds: float = 15.0  # of silence, after which a stream says that it is there
    reader_seconds: float = 30.0  # for a client to take in what it was sent
