"""The imports of the package against the table of docs/design.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "forerun"
NAMED = re.compile(r"\.__(?:name__|module__)\s*(?:==|!=|in)\s*[(\"'](forerun[.\w]*|\w+)")

Imports = dict[str, set[str]]
"""The files that each file imports, as paths below the package."""


@cache
def floors() -> dict[str, int]:
    """The row of each room in the table, counted from the top, which imports nothing."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text[text.index("## Layers") : text.index("## Decisions")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name: floor for floor, row in enumerate(rows) for name in re.findall("`([^`]+)`", row)}


def room_of(file: str) -> str:
    """The most deeply nested room of the table that a file lies in."""
    parts = file.removesuffix(".py").split("/")
    paths = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((path for path in paths if path in floors()), "")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports_of(folder: Path) -> Imports:
    """The imports between the files of a package, those inside functions too; those that only type
    checkers follow are left out."""
    names = {str(file.relative_to(folder)): file for file in folder.rglob("*.py")}
    return {name: set(_resolved(_imported(parsed(file)), names)) for name, file in names.items()}


def _imported(node: ast.AST) -> Iterator[str]:
    """Dotted names below the package that a syntax tree imports; of `from a import b`, a.b."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name.removeprefix("forerun.") for alias in node.names if _is_ours(alias))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "forerun":
        module = (node.module or "").removeprefix("forerun").removeprefix(".")
        yield from (f"{module}.{alias.name}".removeprefix(".") for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def _is_ours(alias: ast.alias) -> bool:
    return alias.name.split(".")[0] == "forerun"


def _resolved(dotted: Iterable[str], files: Iterable[str]) -> Iterator[str]:
    """The files behind dotted names: of a.b, the module b or else the package or module a."""
    known = set(files)
    for name in dotted:
        path, parent = name.replace(".", "/"), "/".join(name.split(".")[:-1])
        for file in (f"{path}.py", f"{path}/__init__.py", f"{parent}.py", f"{parent}/__init__.py"):
            if file.removeprefix("/") in known:
                yield file.removeprefix("/")
                break


def circles(imports: Imports) -> list[list[str]]:
    """Groups of files that import one another, directly or over others (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = lowest[file] = len(number)
        stack.append(file)
        for other in imports[file]:
            if other not in number:
                visit(other)
            if other in stack:
                lowest[file] = min(lowest[file], lowest[other])
        if lowest[file] == number[file]:
            group = stack[stack.index(file) :]
            del stack[stack.index(file) :]
            if len(group) > 1:
                found.append(sorted(group))

    for file in imports:
        if file not in number:
            visit(file)
    return found


def upwards(imports: Imports) -> list[str]:
    """Imports of a room in the same row of the table or in a row below."""
    return sorted(
        f"{file} imports {other}"
        for file, others in imports.items()
        for other in others
        if room_of(file) != room_of(other) and floors()[room_of(other)] >= floors()[room_of(file)]
    )


def test_every_file_has_a_room() -> None:
    files = [str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py")]
    assert [file for file in files if not room_of(file)] == []
    assert set(floors()) == {room_of(file) for file in files}


def test_no_import_goes_upwards() -> None:
    assert upwards(imports_of(PACKAGE)) == []


def test_no_files_import_one_another() -> None:
    assert circles(imports_of(PACKAGE)) == []


def test_no_check_by_the_name_of_a_class_or_module_of_ours() -> None:
    ours = {"forerun"}
    for file in PACKAGE.rglob("*.py"):
        ours |= {node.name for node in ast.walk(parsed(file)) if isinstance(node, ast.ClassDef)}
    checked = {
        f"{file.name}: {name}"
        for file in PACKAGE.rglob("*.py")
        for name in NAMED.findall(file.read_text(encoding="utf-8"))
        if name.split(".")[0] in ours
    }
    assert checked == set()


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import forerun.engine.plan", {"engine/plan.py"}),
        ("from forerun.engine import plan", {"engine/plan.py"}),
        ("def f():\n    from forerun.base.errors import explain", {"base/errors.py"}),
        ("from forerun import rules", {"rules/__init__.py"}),
        ("if TYPE_CHECKING:\n    import forerun.engine.plan", set()),
        ("import numpy", set()),
    ],
)
def test_imports_are_found(text: str, imported: set[str], tmp_path: Path) -> None:
    for name in ("engine/plan.py", "base/errors.py", "rules/__init__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    assert imports_of(tmp_path)["a.py"] == imported


def test_a_circle_and_an_import_upwards_are_found() -> None:
    imports = {"base/a.py": {"engine/b.py"}, "engine/b.py": {"rules/c.py"}, "rules/c.py": set()}
    assert circles(imports) == []
    assert upwards(imports) == ["base/a.py imports engine/b.py"]
    imports["rules/c.py"] = {"base/a.py"}
    assert circles(imports) == [["base/a.py", "engine/b.py", "rules/c.py"]]
