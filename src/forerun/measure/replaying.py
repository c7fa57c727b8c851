"""Checks the simulator: replaying recorded rounds must give the measured tokens per round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.forecast.simulator import replay
from forerun.measure.records import Cell, Run


@dataclass(frozen=True)
class Replayed:
    """Tokens per round of a cell: measured, and replayed from recorded rounds."""

    cell: Cell
    measured: float
    from_own: float  # from the rounds of the cell itself
    from_longest: float  # the rounds of the same drafter's longest drafts, cut to this length

    @property
    def error(self) -> float:
        """Relative error of the replay of the cell's own rounds."""
        return abs(self.from_own / self.measured - 1)


def replayed(runs: Sequence[Run]) -> list[Replayed]:
    """The replay of every cell that drafts chains of a fixed length."""
    rounds: dict[Cell, list[int]] = defaultdict(list)
    tokens: dict[Cell, int] = defaultdict(int)
    for run in runs:
        cell = run.cell
        if cell.peer is None and cell.drafter and cell.tree is None and cell.draft_length != "auto":
            for answer in run.answers:
                rounds[cell] += answer.accepted_by_round
                tokens[cell] += answer.new_tokens
    longest: dict[tuple[object, ...], Cell] = {}
    for cell in rounds:
        known = longest.setdefault(_kind(cell), cell)
        if int(cell.draft_length) > int(known.draft_length):
            longest[_kind(cell)] = cell
    return [
        Replayed(
            cell,
            tokens[cell] / len(accepted),
            _replay(accepted, cell, cell),
            _replay(rounds[longest[_kind(cell)]], longest[_kind(cell)], cell),
        )
        for cell, accepted in rounds.items()
    ]


def _kind(cell: Cell) -> tuple[object, ...]:
    return cell.drafter, cell.batch, cell.temperature, cell.rule


def _replay(accepted: list[int], recorded: Cell, replayed_cell: Cell) -> float:
    simulation = replay(
        accepted,
        recorded_length=int(recorded.draft_length),
        draft_length=int(replayed_cell.draft_length),
        draft_cost=0.0,
    )
    return simulation.tokens_per_round.mean
