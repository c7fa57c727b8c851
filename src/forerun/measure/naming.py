"""Labels of a cell for readers: its series, its draft length, and its setting."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.measure.records import Cell


@dataclass(frozen=True, order=True)
class Setting:
    """The batch size and temperature that one plot holds fixed."""

    batch: int
    temperature: float

    @property
    def name(self) -> str:
        """The setting as part of a file name."""
        return f"batch-{self.batch}-temperature-{self.temperature:g}"

    @property
    def words(self) -> str:
        """The setting in words, for readers."""
        return f"batch {self.batch}, {temperature_words(self.temperature)}"


@dataclass(frozen=True)
class Series:
    """Cells that differ only in draft length: one line of a plot."""

    drafter: str | None
    tree: int | None
    rule: str
    peer: str | None

    @property
    def label(self) -> str:
        """Name for readers; a hub name is shortened to the part after the last slash."""
        name = "plain" if self.drafter is None else self.drafter.rstrip("/").split("/")[-1]
        tree = f" tree {self.tree}" if self.tree else ""
        rule = f" {self.rule}" if self.rule != "match" else ""
        return name + tree + rule + (f" ({self.peer})" if self.peer else "")


def setting_of(cell: Cell) -> Setting:
    """The setting of a cell."""
    return Setting(cell.batch, cell.temperature)


def series_of(cell: Cell) -> Series:
    """The series that a cell belongs to."""
    return Series(cell.drafter, cell.tree, cell.rule, cell.peer)


def temperature_words(temperature: float) -> str:
    """A temperature in words, for readers."""
    return f"temperature {temperature:g}" if temperature else "greedy"


def length_words(cell: Cell) -> str:
    """A cell's draft length in words, for readers."""
    return "auto K" if cell.draft_length == "auto" else f"K = {cell.draft_length}"


def cell_words(cell: Cell) -> str:
    """All fields of the cell except the target."""
    return f"{series_of(cell).label}, {length_words(cell)}, {setting_of(cell).words}"
