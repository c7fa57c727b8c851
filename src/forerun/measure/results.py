"""A sweep as the plots need it: settings, series, and the best draft lengths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest

from forerun.base.errors import InputError, explain
from forerun.measure.figures import Figures, figures, is_plain
from forerun.measure.figures import groups as groups_of
from forerun.measure.held_out import Gain, held_out
from forerun.measure.naming import Series, Setting, series_of, setting_of
from forerun.measure.records import Cell, Prediction, Records, Run, Sample
from forerun.measure.summary import predicted


class Results:
    """The figures of a sweep, by setting and series."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self._check()
        self.figures = figures(records.runs)
        self.groups = groups_of(records.runs)
        self.settings = sorted({setting_of(entry.cell) for entry in self.figures})
        self.batches = sorted({setting.batch for setting in self.settings})
        self.temperatures = sorted({setting.temperature for setting in self.settings})
        self.drafters = list(dict.fromkeys(entry.cell.drafter for entry in self.figures))

    def series(self, setting: Setting | None = None) -> list[Series]:
        """The series with a drafter, in the order of the sweep."""
        cells = (entry.cell for entry in self.figures if not is_plain(entry.cell))
        kept = (series_of(cell) for cell in cells if setting in (None, setting_of(cell)))
        return list(dict.fromkeys(kept))

    def plain_series(self) -> list[Series]:
        """The series of plain decoding: ours, and one for each peer."""
        cells = (entry.cell for entry in self.figures if is_plain(entry.cell))
        plain_lines = dict.fromkeys(map(series_of, cells))
        return sorted(plain_lines, key=lambda series: series.peer or "")

    def has(self, setting: Setting, series: Series) -> bool:
        """Whether a series has cells in this setting."""
        return bool(self._line(setting, series))

    def fixed(self, setting: Setting, series: Series) -> list[Figures]:
        """The cells of a line with a fixed draft length, shortest first."""
        cells = [
            entry for entry in self._line(setting, series) if entry.cell.draft_length != "auto"
        ]
        return sorted(cells, key=lambda entry: int(entry.cell.draft_length))

    def auto(self, setting: Setting, series: Series) -> Figures | None:
        """The cell of a line with an automatic draft length; None if there is none."""
        line = self._line(setting, series)
        return next((entry for entry in line if entry.cell.draft_length == "auto"), None)

    def plain(self, setting: Setting, peer: str | None = None) -> Figures | None:
        """The plain-decoding cell in this setting, ours or a peer's; None if there is none."""
        line = self._line(setting, Series(None, None, "match", peer))
        return next(iter(line), None)

    def best(self, setting: Setting, series: Series) -> Figures:
        """The cell of a line with the most tokens per second, which may be `auto`."""
        return max(self._line(setting, series), key=lambda entry: entry.tokens_per_second.mean)

    def best_fixed(self, setting: Setting, series: Series) -> Figures | None:
        """The cell of a line with the most tokens per second at a fixed draft length; None if there
        is none."""
        line = self.fixed(setting, series)
        return max(line, key=lambda entry: entry.tokens_per_second.mean, default=None)

    def longest(self, setting: Setting) -> list[Figures]:
        """The cell with the longest fixed draft of each of our drafters, which covers the most
        positions."""
        lines = [
            self.fixed(setting, series) for series in self.series(setting) if series.peer is None
        ]
        return [line[-1] for line in lines if line and line[-1].acceptance_by_position]

    def winner(self, setting: Setting) -> Figures | None:
        """Our fastest cell with a drafter; None if there is none."""
        lines = [series for series in self.series(setting) if series.peer is None]
        cells = [self.best(setting, series) for series in lines]
        return max(cells, key=lambda entry: entry.tokens_per_second.mean, default=None)

    def gain(self, setting: Setting) -> Gain | None:
        """The gain of our fastest cell over plain decoding, on prompts it was not chosen on."""
        return self._gains[setting]

    def reached_by_position(self, cell: Cell) -> list[int]:
        """The number of rounds of a cell in which each draft slot was reached."""
        answers = [a for run in self.records.runs if run.cell == cell for a in run.answers]
        columns = zip_longest(*(answer.reached_by_position for answer in answers), fillvalue=0)
        return [sum(column) for column in columns]

    def by_group(self, group: str) -> dict[Cell, Figures]:
        """The figures of one task group."""
        return self._groups[group]

    @property
    def sample(self) -> Sample | None:
        """The generation to show: of a drafter that is best in some setting, if one was
        recorded."""
        best = [entry.cell.drafter for setting in self.settings if (entry := self.winner(setting))]
        samples = self.records.samples
        fitting = [
            recorded for drafter in best for recorded in samples if recorded.cell.drafter == drafter
        ]
        return next(iter([*fitting, *samples]), None)

    @cached_property
    def predicted(self) -> list[tuple[Prediction, Figures]]:
        """Predictions whose cell was measured, plain decoding included."""
        return predicted(self.records.predictions, self.figures)

    @cached_property
    def same_text(self) -> tuple[int, int]:
        """Number of answers that equal plain decoding's, and number of answers compared."""
        plain: dict[tuple[str, float], str] = {}
        for run in self.records.runs:
            if is_plain(run.cell) and run.cell.peer is None:
                for answer in run.answers:
                    plain.setdefault((answer.prompt, run.cell.temperature), answer.digest)
        same = compared = 0
        for run in self.records.runs:
            if run.cell.peer is None and not is_plain(run.cell) and run.cell.rule == "match":
                pairs = [(plain.get((a.prompt, run.cell.temperature)), a) for a in run.answers]
                compared += sum(expected is not None for expected, _ in pairs)
                same += sum(expected == answer.digest for expected, answer in pairs)
        return same, compared

    @cached_property
    def _gains(self) -> dict[Setting, Gain | None]:
        ours: dict[Setting, dict[Cell, list[Run]]] = {setting: {} for setting in self.settings}
        plain: dict[Setting, list[Run]] = {setting: [] for setting in self.settings}
        for run in self.records.runs:
            if run.cell.peer is None:
                setting = setting_of(run.cell)
                if is_plain(run.cell):
                    plain[setting].append(run)
                else:
                    ours[setting].setdefault(run.cell, []).append(run)
        return {setting: held_out(ours[setting], plain[setting]) for setting in self.settings}

    @cached_property
    def _groups(self) -> dict[str, dict[Cell, Figures]]:
        runs = self.records.runs
        return {
            group: {entry.cell: entry for entry in figures(runs, group=group)}
            for group in self.groups
        }

    def _line(self, setting: Setting, series: Series) -> list[Figures]:
        return self._lines.get((setting, series), [])

    @cached_property
    def _lines(self) -> dict[tuple[Setting, Series], list[Figures]]:
        lines: dict[tuple[Setting, Series], list[Figures]] = {}
        for entry in self.figures:
            lines.setdefault((setting_of(entry.cell), series_of(entry.cell)), []).append(entry)
        return lines

    def _check(self) -> None:
        if not self.records.runs:
            cure = "Let the sweep finish a run first: start it again, it goes on where it was."
            raise InputError(explain("The sweep has nothing to show yet.", "no finished run", cure))
        targets = sorted({run.cell.target for run in self.records.runs})
        if len(targets) > 1:
            cure = "Sweep each target into a folder of its own."
            wrong = "The sweep holds several targets, whose speeds do not compare."
            raise InputError(explain(wrong, ", ".join(targets), cure))


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def shares_in_words(shares: dict[str, float]) -> str:
    """Shares in words: `a 10%, b 20%`; of more than three, only the smallest and the largest."""
    words = {name: f"{name} {share:.0%}" for name, share in shares.items()}
    if len(words) <= 3:
        return ", ".join(words.values())
    ends = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    return " to ".join(words[name] for name in ends)
