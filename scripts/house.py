"""Prints the figures of the house: how large the package is, its layers, how it is described.

    python scripts/house.py

Lines of code are the lines of `src` that hold code: no docstring, no comment and no blank line.
Docstrings are counted in lines too, those below constants and fields included.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "forerun"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of(text: str) -> tuple[int, int]:
    """The numbers of lines of code and of docstrings in a file's text."""
    described: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                described.update(range(first, last + 1))
    coded: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            coded.update(range(token.start[0], token.end[0] + 1))
    return len(coded - described), len(described)


def num_floors() -> int:
    """The longest chain of rooms that import one another, rooms as in docs/design.md."""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_layers import imports_of, room_of  # the one reader of imports

    below: dict[str, set[str]] = {}
    for file, others in imports_of(PACKAGE).items():
        rooms = {room_of(other) for other in others} - {room_of(file)}
        below.setdefault(room_of(file), set()).update(rooms)

    @cache
    def floor(room: str) -> int:
        return 1 + max((floor(other) for other in below[room]), default=0)

    return max(map(floor, below))


def num_words(page: str) -> int:
    return len((ROOT / "docs" / page).read_text(encoding="utf-8").split())


def figures() -> dict[str, float]:
    """Each figure by its name."""
    texts = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    counts = [lines_of(text) for text in texts.values()]
    code, described = (sum(column) for column in zip(*counts, strict=True))
    return {
        "files": len(texts),
        "lines of code": code,
        "lines of docstrings to lines of code": round(described / code, 3),
        "lines of the longest file": max(text.count("\n") for text in texts.values()),
        "floors of imports between rooms": num_floors(),
        "modules at the top": len(list(PACKAGE.glob("*.py"))),
        "words of docs/log.md": num_words("log.md"),
        "words of docs/results.md": num_words("results.md"),
    }


if __name__ == "__main__":
    for name, figure in figures().items():
        print(f"{figure:>8}  {name}")
