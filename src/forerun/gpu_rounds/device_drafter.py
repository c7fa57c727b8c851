"""The drafter of captured rounds: its rows, and how much of each text they store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.engine.drafting import Drafting
from forerun.engine.plan import RoundPlan, Span
from forerun.gpu.pool import DeviceMemoryError
from forerun.gpu.rows import GpuRows
from forerun.gpu.storage import Storage
from forerun.gpu_rounds.captures import DraftRows, drafts_in


@dataclass
class DeviceDrafter:
    """A `Model` drafter whose passes are part of captured rounds, or no drafter at all.

    temperature: the drafter's; None uses the request's. context: the longest text that it can read;
    None: any. is_on_host: guesses are made on the host, so that the rounds themselves draft
    nothing.
    """

    drafting: Drafting
    temperature: float | None = None
    context: int | None = None
    is_on_host: bool = False
    hears: bool = field(default=False, init=False)  # every round, on the device
    crowded: set[int] = field(default_factory=set)  # rows for whose texts it has no room

    @property
    def rows(self) -> DraftRows | None:
        """The drafter's rows, numbered like those of the target; None without a drafter."""
        if self.drafting.drafter is None or self.is_on_host:
            return None
        state = self.drafting.state
        rows: GpuRows = getattr(state, "inner", state).rows  # of a drafter within `Forced`, too
        return rows

    def free(self, left: Sequence[int]) -> None:
        """Free the rows of requests that have left."""
        self.crowded.difference_update(left)
        rows = self.rows if left else None
        if rows is not None:
            for row in left:
                rows.release(row)

    def rows_in(self, length: int) -> DraftRows | None:
        """The drafter's rows that a round with this draft length uses."""
        return drafts_in(self.rows, length)

    def catch_up(
        self,
        spans: Sequence[Span],
        texts: Sequence[Sequence[int]],
        more: Sequence[int | None],
        ends: Sequence[int],
        length: int,
    ) -> DraftRows | None:
        """Store all but the last two tokens of each text; the first draft step feeds these two.

        more: by text, tokens that a running round will add; None: there is nothing to store.
        ends: by text, the most tokens it has when the round begins.
        Returns the rows that a round with this draft length uses; None if there is no memory for
        any. Then the requests continue without drafts.
        """
        rows = self.rows_in(length)
        if not isinstance(rows, GpuRows):
            return None
        try:
            rows.storage.pages.pool.make()
        except DeviceMemoryError as error:
            self.drafting.give_up(error, {span.row: span.request for span in spans})
            return None
        for span, end in zip(spans, ends, strict=True):
            if span.row not in self.crowded:
                try:
                    rows.reserve(span.row, rows.lengths[span.row], end + length)
                except DeviceMemoryError:
                    rows.release(span.row)
                    self.crowded.add(span.row)
        rows.feed(
            [
                (span.row, stored, text[stored:end])
                for span, text, count in zip(spans, texts, more, strict=True)
                if count is not None
                and span.row not in self.crowded
                and (stored := rows.lengths[span.row]) < (end := len(text) - 2 + count)
            ]
        )
        return rows

    def note(self, row: int, before: int, num_accepted: int, length: int) -> None:
        """Record that a round accepted num_accepted tokens after a text of `before` tokens."""
        if self.rows is not None and length:
            self.rows.lengths[row] = before + min(num_accepted, length - 1)

    def can_follow(self, length: int, num_stored: int) -> bool:
        """Whether the drafter can guess after a text of which the target stores num_stored
        tokens."""
        return True

    def asked(self, plan: RoundPlan, indices: Sequence[int]) -> list[int]:
        """The draft lengths for the answered spans with these indices."""
        limits = plan.drafts.limits
        if self.drafting.drafter is None or self.is_on_host or not limits:
            return [0] * len(indices)
        abandoned = self.drafting.abandoned
        return [
            0
            if (limit := limits[index]) is None or plan.answering[index].row in abandoned
            else limit.budget
            if limit.depth is None
            else limit.depth
            for index in indices
        ]

    def can_read(self, length: int) -> bool:
        """Whether a text of this length fits the model's context."""
        return self.context is None or length <= self.context

    def share(self, length: int, target: Storage) -> float:
        """The estimated share of a round's time that drafting takes. It assumes that time is
        proportional to the bytes of weights that are read."""
        if self.rows is None:
            return 0.0
        step = length * self.rows.storage.num_bytes
        return step / (step + target.num_bytes)
