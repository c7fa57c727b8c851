"""The messages between an ingress and a replica: the work of one answer, and its pieces.

Work consists of a prompt in token ids, the answer's options including a seed, and the output so
far. This determines the answer completely, so any replica of the same model can continue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add

from forerun.engine.answer_options import AnswerOptions
from forerun.engine.results import Piece, Seconds, Stats
from forerun.serve.admission.engine_roles import Pair


@dataclass(frozen=True)
class Work:
    """One answer to generate or to continue."""

    pair: Pair  # names of the drafter and the rule
    prompt: Sequence[int]
    options: AnswerOptions
    given: Sequence[int]  # the output so far
    model_digest: str  # of the model that wrote it
    replica: str = ""  # the one that holds the prompt's beginning, as far as is known
    avoid: Sequence[str] = ()  # replicas that were lost lately, and may only hang


@dataclass(frozen=True)
class Growth:
    """How the answer's counts have grown since the last message."""

    rounds: Sequence[tuple[int, int, int, Seconds]] = ()  # drafted, accepted, emitted, seconds
    reached: Sequence[int] = ()
    accepted: Sequence[int] = ()
    num_reused: int = 0


@dataclass(frozen=True)
class Beat:
    """A sign that the replica is alive and has the work, but nothing new to report."""


@dataclass(frozen=True)
class Message:
    """A step of one answer. The first message has no pieces and says that the answer got a row."""

    pieces: Sequence[Piece]
    growth: Growth
    replica: str = ""  # who sends it
    number: int = 0  # of those of this answer, from 0


@dataclass(frozen=True)
class Ending(Message):
    """The last message, with the last piece; the answer is then complete.

    error: set if the request itself failed.
    """

    text: str | None = None
    seed: int = 0
    error: str | None = None
    notes: Sequence[str] = ()
    compared: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Refusal:
    """The only message about work that this replica cannot do, and perhaps no replica can.

    status: 400 for invalid work, 409 if the replica has another model, 503 if its engine has
    failed.
    """

    reason: str
    param: str | None = None  # the field that is wrong
    status: int = 400


class ReplicaLostError(Exception):
    """A replica can no longer continue an answer; another one can."""


@dataclass
class Odometer:
    """Measures how an answer's counts grow, while its engine's thread adds to them."""

    stats: Stats
    num_told: int = field(default=0)  # rounds

    def growth(self) -> Growth:
        """The growth of the counts since the last call."""
        stats, begin = self.stats, self.num_told
        self.num_told = end = len(stats.seconds_by_round)  # which a round adds to last
        rounds = zip(
            stats.drafted_by_round[begin:end],
            stats.accepted_by_round[begin:end],
            stats.emitted_by_round[begin:end],
            stats.seconds_by_round[begin:end],
            strict=True,
        )
        return Growth(
            tuple(rounds),
            tuple(stats.reached_by_position),
            tuple(stats.accepted_by_position),
            stats.num_reused,
        )


def grow(stats: Stats, growth: Growth) -> None:
    """Add the growth in a message to the stats."""
    for drafted, accepted, emitted, seconds in growth.rounds:
        stats.rounds += 1
        stats.drafted += drafted
        stats.accepted += accepted
        stats.emitted += emitted
        stats.drafted_by_round.append(drafted)
        stats.accepted_by_round.append(accepted)
        stats.emitted_by_round.append(emitted)
        stats.seconds = Seconds(*map(add, vars(stats.seconds).values(), vars(seconds).values()))
        stats.seconds_by_round.append(seconds)
    stats.reached_by_position = list(growth.reached)
    stats.accepted_by_position = list(growth.accepted)
    stats.num_reused = growth.num_reused
