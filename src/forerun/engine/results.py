"""The results of a generation: text, tokens, the reason why it ended, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from operator import add
from typing import Any, Literal


class Fate(Enum):
    """How an output token came about."""

    ACCEPTED = "accepted"  # drafted, and kept
    CORRECTION = "correction"  # the target's own, after a refusal
    BONUS = "bonus"  # the target's own, after full acceptance or without a draft
    GIVEN = "given"  # part of the output that the request was started with


SHOWN = 60
"""The number of characters of a text that `repr` shows, or of tokens if there is no text."""

Direction = Literal["low", "high"]

LogprobsOf = Literal["model", "sampling"]
"""Which log-probabilities are reported: the model's own, before temperature and everything else, or
those of the distribution that tokens were sampled from, in which greedy decoding gives 0 and
-infinity."""


NOTHING_DRAFTED = "nothing was drafted: no drafter, draft length 0, or no guess to make"
"""The reason why there is no acceptance rate, unless the draft policy gives another one."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability, and the likeliest tokens with theirs, best first.

    text, top_texts: this token and those in `top` as text, where the model has a tokenizer.  A
    token that is part of a character is shown as "�".
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    text: str | None = None
    top_texts: tuple[str, ...] = ()


@dataclass
class Seconds:
    """The seconds of each stage, over the rounds of a request, without compiling. Requests of a
    batch share rounds, so each counts the full time."""

    draft: float = 0.0
    score: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of all stages together."""
        return self.draft + self.score + self.verify + self.commit


@dataclass(repr=False)
class Stats:
    """Counts of one request.

    A guess counts as drafted if the rule judged it; in a tree every node counts. The position of a
    guess is the number of guesses before it. A position is *reached* if all guesses before it were
    accepted and a guess stands there; only then can that guess be accepted.
    """

    rounds: int = 0
    """The number of rounds that the request took part in."""
    num_reused: int = 0
    """The number of prompt tokens that were copied from another row instead of computed."""
    preemptions: int = 0
    """How many times the request had to leave its row for lack of memory, so that its text was read
    again later."""
    drafted: int = 0
    """The number of guesses that the rule judged."""
    accepted: int = 0
    """The number of guesses that were accepted."""
    emitted: int = 0
    """The number of tokens of the text."""
    reached_by_position: list[int] = field(default_factory=list)
    """How often each position of a draft was reached."""
    accepted_by_position: list[int] = field(default_factory=list)
    """How often a guess was accepted at each position of a draft."""
    drafted_by_round: list[int] = field(default_factory=list)
    """The number of guesses in each round."""
    accepted_by_round: list[int] = field(default_factory=list)
    """The number of accepted guesses in each round."""
    emitted_by_round: list[int] = field(default_factory=list)
    """The number of tokens that each round added to the text."""
    seconds_by_round: list[Seconds] = field(default_factory=list)
    """The wall-clock time of each round, by stage."""
    seconds: Seconds = field(default_factory=Seconds)
    """The wall-clock time of all rounds together, by stage."""
    compiling: float = 0.0
    """The seconds that all rounds spent compiling, which `seconds` does not include."""
    compared: tuple[float, float] = (0.0, 0.0)
    """The seconds of the rounds that were compared with plain decoding: first what plain decoding
    would have taken, as estimated, then what they took."""
    num_asked: int = 0
    """The number of rounds in which the drafter was asked, under draft_length="auto"."""
    why_few: str | None = None
    """The reason why few tokens were drafted, under draft_length="auto"."""
    notes: list[str] = field(default_factory=list)
    """Sentences about options without effect, failures of the drafter, and the like."""
    unusual_acceptance: Direction | None = None
    """On a server: whether acceptance was far lower or far higher than that of earlier answers."""

    def __repr__(self) -> str:
        """The most important counts in one line; the fields have the rest."""
        notes = f", {len(self.notes)} notes" if self.notes else ""
        return (
            f"Stats({self.emitted} tokens in {self.rounds} rounds, {self.accepted} of "
            f"{self.drafted} drafted accepted, {self.seconds.total:.2f} s{notes})"
        )

    @property
    def tokens_per_round(self) -> float:
        """The mean number of tokens that a round added to the text."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted guesses divided by drafted ones; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """The acceptance rate at each position of the draft, counting only rounds that reached
        it."""
        pairs = zip(self.accepted_by_position, self.reached_by_position, strict=True)
        return [accepted / reached if reached else 0.0 for accepted, reached in pairs]

    @property
    def speed_against_plain(self) -> float | None:
        """The estimated speed-up over decoding without drafts, from times that the draft policy
        measured; None if it measured none.

        A round with a draft takes at least as long as one without, so the value is limited to the
        tokens per round: timings on a busy machine may exceed that.
        """
        plain, drafted = self.compared
        return min(plain / drafted, self.tokens_per_round) if drafted else None

    def compare_to_plain(self, plain: float, seconds: float) -> None:
        """Record the seconds of the last round beside `plain`, the seconds of a round without a
        draft."""
        gained = self.emitted_by_round[-1]
        self.compared = self.compared[0] + gained * plain, self.compared[1] + seconds

    def count_round(
        self, num_drafted: int, height: int, num_accepted: int, refused: bool, num_emitted: int
    ) -> None:
        """Add the counts of one round, leaving out what comes after a stop.

        height: tokens on the longest path of the draft.
        refused: there were guesses after the last accepted one.
        num_emitted: tokens that remained after stops and limits.
        """
        self.rounds += 1
        self.drafted += num_drafted
        self.accepted += num_accepted
        self.emitted += num_emitted
        self.drafted_by_round.append(num_drafted)
        self.accepted_by_round.append(num_accepted)
        self.emitted_by_round.append(num_emitted)
        missing = height - len(self.reached_by_position)
        self.reached_by_position += [0] * missing
        self.accepted_by_position += [0] * missing
        for depth in range(num_accepted + refused):
            self.reached_by_position[depth] += 1
            self.accepted_by_position[depth] += depth < num_accepted

    def count_seconds(self, *spent: float) -> None:
        """Add the seconds of a round by stage, in the order of the fields of `Seconds`."""
        self.seconds_by_round.append(Seconds(*spent))
        self.seconds = Seconds(*map(add, vars(self.seconds).values(), spent))

    def to_dict(self) -> dict[str, Any]:
        """The counts and rates as plain values, for JSON."""
        return {
            "rounds": self.rounds,
            "num_reused": self.num_reused,
            "preemptions": self.preemptions,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            "drafted_by_round": self.drafted_by_round,
            "speed_against_plain": self.speed_against_plain,
            "why_few": self.why_few or (None if self.drafted else NOTHING_DRAFTED),
            "seconds": vars(self.seconds),
            "compiling": self.compiling,
            "notes": self.notes,
            "unusual_acceptance": self.unusual_acceptance,
        }


@dataclass(repr=False)
class Generation:
    """The answer to one prompt.

    tokens holds what was generated, the ending token included; text leaves out special tokens
    and the stop string.  finish_reason is "stop" (an ending token), "stop_string", "length",
    "context", "cancelled", "aborted", "deadline" or "error".  logprobs, where asked for, are of the
    tokens that were generated, not of output that the request was started with.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str | None
    finish_reason: str
    seed: int
    stats: Stats
    fates: list[Fate]
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None

    def __repr__(self) -> str:
        """Two lines: the beginning of the text with its finish reason, and the statistics."""
        shown = self.tokens if self.text is None else self.text
        is_long = len(shown) > SHOWN
        beginning = repr(shown[:SHOWN]) + (" ..." if is_long else "")
        error = "" if self.error is None else f", error {self.error!r}"
        return (
            f"Generation({beginning}, {len(self.tokens)} tokens, {self.finish_reason}{error},\n"
            f"  {self.stats})"
        )


@dataclass(frozen=True)
class Piece:
    """A piece of streamed text, and the tokens that released it.

    parts is the text token by token, with each token's fate. A character made of several tokens
    belongs to the last of them. Text that might begin a stop string is held back for a later piece.
    logprobs belong to `tokens`; None if they were not asked for.
    """

    parts: list[tuple[str, Fate]]
    tokens: list[int]
    fates: list[Fate]
    index: int = 0
    """The number of the prompt in the call."""
    sample: int = 0
    """The number of the sample of that prompt."""
    finish_reason: str | None = None
    """The reason why the text ends with this piece; None if it goes on."""
    logprobs: list[TokenLogprob] | None = None

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(part for part, _ in self.parts)
