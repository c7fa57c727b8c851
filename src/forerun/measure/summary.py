"""The few numbers by which a sweep checks our own promises; docs/measuring.md defines them.

Do predictions come true?  Is the automatic draft length as good as the best fixed one, and never
worse than none?  Does the simulator give back what was recorded?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.forecast.simulator import replay
from forerun.measure.figures import Figures, figures, groups, plain_of
from forerun.measure.naming import cell_words, length_words
from forerun.measure.records import Cell, Prediction, Records, Run


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
    """A cell with draft length "auto", compared with fixed lengths of the same drafter."""

    cell: Cell
    best: Cell  # the fastest cell of fixed draft length, plain decoding included
    against_best: float  # tokens per second, divided by those of `best`
    by_group: dict[str, float]  # speed-up over plain decoding by task group

    @property
    def lowest(self) -> str | None:
        """The task group with the smallest speed-up."""
        return min(self.by_group, key=self.by_group.__getitem__, default=None)


@dataclass(frozen=True)
class Summary:
    """How far forecasts, automatic lengths and replays of a sweep were off."""

    num_predicted: int  # cells that were predicted and measured
    misses: list[Miss]
    autos: list[Auto]
    replays: list[Replayed]

    @property
    def num_close(self) -> int:
        """The number of predictions that were close."""
        return self.num_predicted - len(self.misses)

    @property
    def worst_replay(self) -> Replayed | None:
        """The replay that is furthest off; None if there is none."""
        return max(self.replays, key=lambda replay: replay.error, default=None)


def summarise(records: Records) -> Summary:
    """The summary of a sweep, finished or not."""
    measured = figures(records.runs)
    pairs = predicted(records.predictions, measured)
    misses = [
        Miss(prediction.cell, prediction.speedup.mean, entry.speedup.mean)
        for prediction, entry in pairs
        if entry.speedup is not None and not is_close(prediction, entry)
    ]
    return Summary(len(pairs), misses, _autos(records.runs, measured), replayed(records.runs))


def predicted(
    predictions: Sequence[Prediction], measured: Sequence[Figures]
) -> list[tuple[Prediction, Figures]]:
    """Predictions whose cell was measured, plain decoding included."""
    known = {entry.cell: entry for entry in measured if entry.speedup is not None}
    latest = {
        prediction.cell: prediction for prediction in predictions
    }  # the last prediction of a cell counts
    return [(prediction, known[cell]) for cell, prediction in latest.items() if cell in known]


def is_close(prediction: Prediction, entry: Figures) -> bool:
    """Whether a prediction is close to its measured value."""
    if entry.speedup is None:
        return False
    return abs(prediction.speedup.mean - entry.speedup.mean) <= CLOSE * entry.speedup.mean


def in_words(summary: Summary) -> list[str]:
    """The summary as lines of text: predictions and each miss, the automatic draft length, the
    replay."""
    lines = []
    if summary.num_predicted:
        close = f"{summary.num_close} of {summary.num_predicted}"
        lines.append(f"predictions: {close} cells within {CLOSE:.0%} of the measured speed-up")
        lines += [
            f"  missed: {cell_words(miss.cell)}: predicted {miss.predicted:.2f}x, "
            f"measured {miss.measured:.2f}x"
            for miss in summary.misses
        ]
    for auto in summary.autos:
        best = f"{auto.against_best:.2f}x the best fixed one ({length_words(auto.best)})"
        lowest = f"; over plain decoding {_lowest(auto)}" if auto.by_group else ""
        lines.append(f"auto: {cell_words(auto.cell)}: {best}{lowest}")
    if (worst := summary.worst_replay) is not None:
        where = f"{len(summary.replays)} cells; worst: {cell_words(worst.cell)}"
        lines.append(f"replay: tokens per round within {worst.error:.1%} in {where}")
    return lines


def _lowest(auto: Auto) -> str:
    group, count = auto.lowest or "", len(auto.by_group)
    where = f"lowest of {count} task groups" if count > 1 else "only task group"
    return f"{auto.by_group[group]:.2f}x ({group}, the {where})"


def _autos(runs: Sequence[Run], measured: Sequence[Figures]) -> list[Auto]:
    """Every chain cell with draft length "auto" that has a cell of fixed length beside it."""
    cells = [entry.cell for entry in measured if _is_auto(entry.cell)]
    speeds = {entry.cell: entry.tokens_per_second.mean for entry in measured}
    compared = {*cells, *map(plain_of, cells)}
    compared_runs = [run for run in runs if run.cell in compared]
    gains: dict[Cell, dict[str, float]] = {cell: {} for cell in compared}
    for group in groups(compared_runs):
        paces = {
            entry.cell: entry.tokens_per_second.mean
            for entry in figures(compared_runs, group=group)
        }
        for cell, pace in paces.items():
            if paces.get(plain_of(cell)):
                gains[cell][group] = pace / paces[plain_of(cell)]
    autos = []
    for cell in cells:
        fixed = [other for other in speeds if _is_fixed_of(cell, other) and speeds[other]]
        if fixed:
            best = max(fixed, key=speeds.__getitem__)
            autos.append(Auto(cell, best, speeds[cell] / speeds[best], gains[cell]))
    return autos


def _is_auto(cell: Cell) -> bool:
    """Whether a cell's draft length is automatic. The depth of a tree is not the policy's to
    choose."""
    return cell.draft_length == "auto" and cell.tree is None and cell.peer is None


def _is_fixed_of(cell: Cell, other: Cell) -> bool:
    """Whether `other` equals `cell` except for a fixed draft length, or is plain decoding."""
    if other == plain_of(cell):
        return True
    kinds = ((x.drafter, x.tree, x.batch, x.temperature, x.rule, x.peer) for x in (cell, other))
    ours, theirs = kinds
    return other.draft_length != "auto" and ours == theirs
