"""Describes the work that the requests of a round need besides the pass and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forerun.engine.request import Request
from forerun.gpu_rounds.edits import edits_law
from forerun.gpu_rounds.lanes import cuts_law
from forerun.gpu_rounds.likeliest import number_of
from forerun.gpu_rounds.masks import has_mask


class Needs(NamedTuple):
    """The work of a round for its requests besides sampling at a temperature."""

    cuts: bool = False  # by top-k, top-p or min-p
    edits: bool = False  # penalties, a bias or bans
    num_likely: int | None = None  # likeliest tokens at each place; None: no log-probabilities
    masks: bool = False  # of a grammar

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Needs:
        return cls(
            any(cuts_law(request.sampling) for request in requests),
            any(edits_law(request) for request in requests),
            number_of([request.num_logprobs for request in requests]),
            any(map(has_mask, requests)),
        )

    def joined(self, other: Needs) -> Needs:
        """The needs of both rounds together."""
        numbers = [self.num_likely, other.num_likely]
        return Needs(
            self.cuts or other.cuts,
            self.edits or other.edits,
            number_of(numbers),
            self.masks or other.masks,
        )
