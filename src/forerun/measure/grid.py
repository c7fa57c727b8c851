"""The cells of a sweep, and the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from forerun.base.errors import InputError, explain
from forerun.drafters.base import Drafter
from forerun.measure.peers import can_run
from forerun.measure.records import Cell
from forerun.measure.running import Question
from forerun.rules.types import DraftLength


@dataclass(frozen=True)
class Job:
    """One run to do: a cell, its repeat, and the questions of its batch."""

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
    """The cells of a sweep: plain decoding, then each drafter with each draft length, and with
    trees of that depth.

    Draft length 0 is plain decoding, whatever the drafter.  It is always included, because all
    other cells are compared with it.  Trees are as deep as the longest fixed draft length.
    """
    cells: list[Cell] = []
    for batch, temperature in product(batches, temperatures):
        our_cells = [Cell(target, None, 0, None, batch, temperature, "match")]
        lengths = [length for length in draft_lengths if length]
        deepest: DraftLength = max((k for k in lengths if k != "auto"), default="auto")
        for name in drafters:
            our_cells += [Cell(target, name, k, None, batch, temperature, rule) for k in lengths]
            our_cells += [Cell(target, name, deepest, n, batch, temperature, rule) for n in trees]
        cells += our_cells
        for peer in peers:
            peer_cells = [
                cell for cell in our_cells if can_run(cell, drafters.get(cell.drafter or ""))
            ]
            cells += [
                Cell(
                    target, cell.drafter, cell.draft_length, None, batch, temperature, "match", peer
                )
                for cell in peer_cells
            ]
    return list(dict.fromkeys(cells))


def jobs_of(
    cells: Sequence[Cell], questions: Sequence[Question], repeats: Mapping[int, int]
) -> Iterator[Job]:
    """The runs in their order: all cells run on one batch of prompts before any cell goes on to the
    next batch.

    A slow minute of the machine then affects all cells alike.  Each time another cell goes first.
    Prompts of different groups share a batch, as on a server.  Where the last batch is not full,
    the first prompts fill it.  repeats: number of repeats by batch size.
    """
    questions = _mixed(questions)
    batches = sorted({cell.batch for cell in cells})
    check_batches(batches, len(questions))
    turn = 0
    for repeat in range(max(repeats[batch] for batch in batches)):
        due = [batch for batch in batches if repeat < repeats[batch]]
        starts = sorted((at, b) for b in due for at in range(0, len(questions), b))
        for start, batch in starts:
            batch_questions = tuple((*questions, *questions)[start : start + batch])
            batch_cells = [cell for cell in cells if cell.batch == batch]
            turn += 1
            first = turn % len(batch_cells)
            for cell in batch_cells[first:] + batch_cells[:first]:
                yield Job(cell, repeat, batch_questions)


def repeats_of(batches: Sequence[int], repeats: int | Sequence[int]) -> dict[int, int]:
    """Repeats by batch size, from one number for all batch sizes or one number per size."""
    counts = [repeats] * len(batches) if isinstance(repeats, int) else list(repeats)
    if len(counts) == 1:
        counts *= len(batches)
    if len(counts) != len(batches):
        cure = f"Give one number, or {len(batches)}: one for each batch."
        raise InputError(explain("The repeats do not fit the batches.", counts, cure))
    if min(counts) < 1:
        raise InputError(explain("The repeats are too few.", min(counts), "Use 1 or more."))
    return dict(zip(batches, counts, strict=True))


def check_batches(batches: Sequence[int], num_prompts: int) -> None:
    """Refuses a batch larger than the prompt set: it would run smaller than its name says."""
    if max(batches) > num_prompts:
        cure = f"Use batches up to {num_prompts}, or more prompts."
        wrong = "A batch is larger than the prompt set."
        raise InputError(explain(wrong, f"{max(batches)} of {num_prompts} prompts", cure))


def _mixed(questions: Sequence[Question]) -> list[Question]:
    """The first question of each group, then the second of each group, and so on."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.group, []).append(question)
    ranked = [
        (i, g, question)
        for g, members in enumerate(groups.values())
        for i, question in enumerate(members)
    ]
    return [question for _, _, question in sorted(ranked, key=lambda entry: entry[:2])]
