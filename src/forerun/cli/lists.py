"""Parses command-line values: lists and ranges (`1,4`, `0..8`), trees (`2,2`), paths of
pictures."""

from __future__ import annotations

from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.trees.tree import Tree


def numbers(flag: str, text: str) -> list[float]:
    """Parse a list of numbers: `0,0.8` -> [0.0, 0.8]."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        cure = "Write a number, or several separated by commas."
        raise InputError(explain(f"{flag} is not a list of numbers.", repr(text), cure)) from error


def counts(flag: str, text: str) -> list[int]:
    """Parse a list of whole numbers and ranges: `0..4,8` -> [0, 1, 2, 3, 4, 8]."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            start = int(first)
            stop = int(last) if dots else start
        except ValueError as error:
            cure = "Write a range 0..8 or a list 0,2,4."
            raise InputError(explain(f"{flag} is not a range.", repr(text), cure)) from error
        if start < 0 or stop < start:
            wrong = f"{flag} counts {'from below zero' if start < 0 else 'backwards'}."
            cure = "Start at 0 or above." if start < 0 else f"Did you mean {stop}..{start}?"
            raise InputError(explain(wrong, repr(part), cure))
        numbers.extend(range(start, stop + 1))
    return numbers


def tree(flag: str, text: str | None) -> int | Tree | None:
    """Parse a tree: `16` -> 16 nodes of any shape; `2,2` -> two nodes after the text, and two after
    each."""
    if text is None:
        return None
    try:
        widths = [int(part) for part in text.split(",")]
    except ValueError as error:
        cure = "Write a number of nodes, 16, or how many children each level has, 2,2."
        raise InputError(explain(f"{flag} is no tree.", repr(text), cure)) from error
    if min(widths) < 1:
        raise InputError(explain(f"{flag} is too small.", text, "Use 1 or more."))
    return widths[0] if len(widths) == 1 else Tree.of_branching(widths)


def picture_path(text: str) -> Path:
    """The path for `--plot`. A bad path or a missing matplotlib is reported before anything
    runs."""
    from forerun.base.drawing import FORMATS

    path = Path(text)
    if path.suffix[1:].lower() not in FORMATS:
        cure = f"End the name in .{', .'.join(FORMATS)}."
        raise InputError(explain("--plot draws SVG, PNG and PDF.", repr(text), cure))
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        cure = "Choose a file in an existing folder that you may write to."
        wrong = f"--plot cannot be written ({error.strerror})."
        raise InputError(explain(wrong, repr(text), cure)) from error
    if is_new:
        path.unlink()
    return path
