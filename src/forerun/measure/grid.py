"""The cells of a sweep, and the order in which they take turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from forerun.drafters.base import Drafter
from forerun.errors import InputError, explain
from forerun.measure.peers import can_run
from forerun.measure.records import Cell
from forerun.measure.running import Question
from forerun.types import DraftLength


@dataclass(frozen=True)
class Job:
    """A run that is wanted."""

    cell: Cell
    repeat: int
    questions: tuple[Question, ...]

    @property
    def key(self) -> tuple[Cell, int, tuple[str, ...]]:
        return self.cell, self.repeat, tuple(question.id for question in self.questions)


def cells_of(
    target: str,
    drafters: Mapping[str, Drafter],
    *,
    draft_lengths: Sequence[DraftLength],
    trees: Sequence[int] = (),
    batches: Sequence[int],
    temperatures: Sequence[float],
    rule: str,
    peers: Sequence[str] = (),
) -> list[Cell]:
    """Plain decoding, then every drafter with every draft length, and with trees of the longest.

    Draft length 0 is plain decoding whatever the drafter, and is always there: it is what the
    others are compared with.
    """
    found: list[Cell] = []
    for batch, temperature in product(batches, temperatures):
        own = [Cell(target, None, 0, None, batch, temperature, "match")]
        lengths = [length for length in draft_lengths if length]
        deepest: DraftLength = max((k for k in lengths if k != "auto"), default="auto")
        for name in drafters:
            own += [Cell(target, name, k, None, batch, temperature, rule) for k in lengths]
            own += [Cell(target, name, deepest, n, batch, temperature, rule) for n in trees]
        found += own
        for peer in peers:
            theirs = [cell for cell in own if can_run(cell, drafters.get(cell.drafter or ""))]
            found += [
                Cell(
                    target, cell.drafter, cell.draft_length, None, batch, temperature, "match", peer
                )
                for cell in theirs
            ]
    return list(dict.fromkeys(found))


def jobs_of(
    cells: Sequence[Cell], questions: Sequence[Question], repeats: Mapping[int, int]
) -> Iterator[Job]:
    """Runs in turns: all cells on the same prompts before anyone goes on to the next.

    repeats: by batch.

    A slow minute of the machine then hits all cells alike, and another cell goes first each time.
    Prompts of different groups share a batch, as they would on a server; where they do not fill
    the last batch, the first ones come again.
    """
    questions = _mixed(questions)
    batches = sorted({cell.batch for cell in cells})
    check_batches(batches, len(questions))
    turn = 0
    for repeat in range(max(repeats[batch] for batch in batches)):
        due = [batch for batch in batches if repeat < repeats[batch]]
        starts = sorted((at, b) for b in due for at in range(0, len(questions), b))
        for start, batch in starts:
            some = tuple((*questions, *questions)[start : start + batch])
            own = [cell for cell in cells if cell.batch == batch]
            turn += 1
            for cell in own[turn % len(own) :] + own[: turn % len(own)]:
                yield Job(cell, repeat, some)


def repeats_of(batches: Sequence[int], repeats: int | Sequence[int]) -> dict[int, int]:
    """How often each batch is run: one number for all of them, or one each."""
    each = [repeats] * len(batches) if isinstance(repeats, int) else list(repeats)
    if len(each) == 1:
        each *= len(batches)
    if len(each) != len(batches):
        cure = f"Give one number, or {len(batches)}: one for each batch."
        raise InputError(explain("The repeats do not fit the batches.", each, cure))
    if min(each) < 1:
        raise InputError(explain("The repeats are too few.", min(each), "Use 1 or more."))
    return dict(zip(batches, each, strict=True))


def check_batches(batches: Sequence[int], num_prompts: int) -> None:
    """A batch that cannot be filled would be measured under a wrong name."""
    if max(batches) > num_prompts:
        cure = f"Use batches up to {num_prompts}, or more prompts."
        wrong = "A batch is larger than the prompt set."
        raise InputError(explain(wrong, f"{max(batches)} of {num_prompts} prompts", cure))


def _mixed(questions: Sequence[Question]) -> list[Question]:
    """One of each group, then the next of each, and so on."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.group, []).append(question)
    ranked = [(i, g, each) for g, own in enumerate(groups.values()) for i, each in enumerate(own)]
    return [each for _, _, each in sorted(ranked, key=lambda entry: entry[:2])]
