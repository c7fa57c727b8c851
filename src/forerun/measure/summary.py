"""What a sweep says about our own promises, in a few numbers; docs/measuring.md defines them.

Do predictions come true?  Is the automatic draft length as good as the best fixed one, and never
worse than none?  Does the simulator give back what was recorded?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.measure.figures import Figures, figures, groups, plain_of
from forerun.measure.naming import cell_words, length_words
from forerun.measure.records import Cell, Prediction, Records, Run
from forerun.measure.replaying import Replayed, replayed

CLOSE = 0.15
"""A prediction is close if it differs from the measured speed-up by at most this share of it."""


@dataclass(frozen=True)
class Miss:
    """A cell whose predicted speed-up was not close to the measured one."""

    cell: Cell
    predicted: float
    measured: float


@dataclass(frozen=True)
class Auto:
    """A cell with draft length "auto" against the fixed ones of the same drafter."""

    cell: Cell
    best: Cell  # the fixed draft length with the most tokens per second, plain decoding included
    against_best: float  # tokens per second over those of the best
    by_group: dict[str, float]  # and over those of plain decoding, by task group

    @property
    def lowest(self) -> str | None:
        """The task group that gains least."""
        return min(self.by_group, key=self.by_group.__getitem__, default=None)


@dataclass(frozen=True)
class Summary:
    num_predicted: int  # cells that were predicted and measured
    misses: list[Miss]
    autos: list[Auto]
    replays: list[Replayed]

    @property
    def num_close(self) -> int:
        return self.num_predicted - len(self.misses)

    @property
    def worst_replay(self) -> Replayed | None:
        return max(self.replays, key=lambda each: each.error, default=None)


def summarise(records: Records) -> Summary:
    """The summary of a sweep, finished or not."""
    measured = figures(records.runs)
    pairs = predicted(records.predictions, measured)
    misses = [
        Miss(guess.cell, guess.speedup.mean, found.speedup.mean)
        for guess, found in pairs
        if found.speedup is not None and not is_close(guess, found)
    ]
    return Summary(len(pairs), misses, _autos(records.runs, measured), replayed(records.runs))


def predicted(
    predictions: Sequence[Prediction], measured: Sequence[Figures]
) -> list[tuple[Prediction, Figures]]:
    """Predictions whose cell was measured, plain decoding included."""
    known = {each.cell: each for each in measured if each.speedup is not None}
    latest = {each.cell: each for each in predictions}  # a new probe counts
    return [(each, known[cell]) for cell, each in latest.items() if cell in known]


def is_close(guess: Prediction, found: Figures) -> bool:
    if found.speedup is None:
        return False
    return abs(guess.speedup.mean - found.speedup.mean) <= CLOSE * found.speedup.mean


def in_words(summary: Summary) -> list[str]:
    """A line for each of the three questions that the sweep can answer, and one for each miss."""
    lines = []
    if summary.num_predicted:
        close = f"{summary.num_close} of {summary.num_predicted}"
        lines.append(f"predictions: {close} cells within {CLOSE:.0%} of the measured speed-up")
        lines += [
            f"  missed: {cell_words(each.cell)}: predicted {each.predicted:.2f}x, "
            f"measured {each.measured:.2f}x"
            for each in summary.misses
        ]
    for each in summary.autos:
        best = f"{each.against_best:.2f}x the best fixed one ({length_words(each.best)})"
        least = f"; over plain decoding at least {_least(each)}" if each.by_group else ""
        lines.append(f"auto: {cell_words(each.cell)}: {best}{least}")
    if (worst := summary.worst_replay) is not None:
        where = f"{len(summary.replays)} cells; worst: {cell_words(worst.cell)}"
        lines.append(f"replay: tokens per round within {worst.error:.1%} in {where}")
    return lines


def _least(each: Auto) -> str:
    group = each.lowest or ""
    return f"{each.by_group[group]:.2f}x ({group})"


def _autos(runs: Sequence[Run], measured: Sequence[Figures]) -> list[Auto]:
    """Every chain of ours with draft length "auto" that has a fixed one beside it."""
    cells = [each.cell for each in measured if _is_auto(each.cell)]
    speeds = {each.cell: each.tokens_per_second.mean for each in measured}
    compared = {*cells, *map(plain_of, cells)}
    own = [run for run in runs if run.cell in compared]
    gains: dict[Cell, dict[str, float]] = {cell: {} for cell in compared}
    for group in groups(own):
        paces = {each.cell: each.tokens_per_second.mean for each in figures(own, group=group)}
        for cell, pace in paces.items():
            if paces.get(plain_of(cell)):
                gains[cell][group] = pace / paces[plain_of(cell)]
    found = []
    for cell in cells:
        fixed = [other for other in speeds if _is_fixed_of(cell, other) and speeds[other]]
        if fixed:
            best = max(fixed, key=speeds.__getitem__)
            found.append(Auto(cell, best, speeds[cell] / speeds[best], gains[cell]))
    return found


def _is_auto(cell: Cell) -> bool:
    """A tree's depth is not the policy's to choose."""
    return cell.draft_length == "auto" and cell.tree is None and cell.peer is None


def _is_fixed_of(cell: Cell, other: Cell) -> bool:
    """Whether another cell is this one with a fixed draft length, or plain decoding."""
    if other == plain_of(cell):
        return True
    kinds = ((x.drafter, x.tree, x.batch, x.temperature, x.rule, x.peer) for x in (cell, other))
    ours, theirs = kinds
    return other.draft_length != "auto" and ours == theirs
