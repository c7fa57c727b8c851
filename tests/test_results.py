"""docs/results.md: its tables are those that the JSON files give."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    """A script of the folder scripts/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return script("results")


def test_the_tables_are_those_of_the_json_files(results: ModuleType) -> None:
    text = results.PAGE.read_text(encoding="utf-8")
    assert results.page(text) == text, "run `python scripts/results.py`"


def test_every_table_is_on_the_page(results: ModuleType) -> None:
    named = [found[2] for found in results.TABLE.finditer(results.PAGE.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(results.TABLES)


def test_a_wrong_figure_is_found(results: ModuleType) -> None:
    text = results.PAGE.read_text(encoding="utf-8")
    wrong = re.sub(r"\| 1\.(\d)", r"| 2.\1", text, count=1)
    assert wrong != text
    assert results.page(wrong) == text


def test_the_picture_of_slowdowns_is_that_of_the_json_file() -> None:
    drawing = script("slowdown")
    drawn = drawing.PICTURE.read_text(encoding="utf-8")
    assert drawing.picture() == drawn, "run `python scripts/slowdown.py`"


def test_every_result_is_named_by_a_page() -> None:
    """A result that no page names is superseded and goes."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    files = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"))
    assert len(files) > 20
    assert [str(file) for file in files if f"{file.parent.name}/{file.name}" not in text] == []
