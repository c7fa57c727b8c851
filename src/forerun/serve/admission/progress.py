"""How far one choice has come, over as many engines as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from forerun.engine.results import Fate, Generation, Piece, Seconds, Stats, TokenLogprob
from forerun.serve.admission.engine_deaths import Death


@dataclass
class Progress:
    """The output so far, and what earlier engines counted."""

    tokens: list[int] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats | None = None  # of engines that died
    num_before: int = 0  # tokens when the present engine was entered
    deaths: list[Death] = field(default_factory=list)  # of engines that it was in
    is_suspect: bool = False  # has not been tried since the last of them

    @property
    def has_gained(self) -> bool:
        """Whether the present engine has given any token."""
        return len(self.tokens) > self.num_before

    def add(self, piece: Piece) -> None:
        self.tokens += piece.tokens
        self.fates += piece.fates
        self.logprobs += piece.logprobs or ()

    def leave(self, partial: Generation | None) -> None:
        """The next engine goes on after what the present one gave, if anything."""
        if partial is not None:
            self.stats = self._all_stats(partial.stats)
        self.num_before = len(self.tokens)

    def complete(self, answer: Generation) -> Generation:
        """The last engine's answer, with what came before it."""
        if self.stats is None:
            return answer
        logprobs = None if answer.logprobs is None else self.logprobs
        stats = self._all_stats(answer.stats)
        return replace(answer, fates=self.fates, logprobs=logprobs, stats=stats)

    def _all_stats(self, last: Stats) -> Stats:
        return last if self.stats is None else added(self.stats, last)


def added(first: Stats, second: Stats) -> Stats:
    """The counts of two stretches of one request."""
    seconds = zip(vars(first.seconds).values(), vars(second.seconds).values(), strict=True)
    return replace(
        second,
        rounds=first.rounds + second.rounds,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
        emitted=first.emitted + second.emitted,
        reached_by_position=_sums(first.reached_by_position, second.reached_by_position),
        accepted_by_position=_sums(first.accepted_by_position, second.accepted_by_position),
        drafted_by_round=first.drafted_by_round + second.drafted_by_round,
        accepted_by_round=first.accepted_by_round + second.accepted_by_round,
        emitted_by_round=first.emitted_by_round + second.emitted_by_round,
        seconds_by_round=first.seconds_by_round + second.seconds_by_round,
        seconds=Seconds(*(one + other for one, other in seconds)),
        compared=(first.compared[0] + second.compared[0], first.compared[1] + second.compared[1]),
        notes=list(dict.fromkeys(first.notes + second.notes)),
    )


def _sums(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Entry by entry; the shorter one counts as 0 from its end on."""
    size = max(len(first), len(second))
    padded = ([*row, *[0] * (size - len(row))] for row in (first, second))
    return [one + other for one, other in zip(*padded, strict=True)]
