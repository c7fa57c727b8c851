"""docs/rules.md says only what runs: its blocks, what they print, and its tables of biases."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from forerun import rules
from forerun.proof import certify, edge_cases, standard_cases, tree_cases
from forerun.proof.mutants import MUTANTS

PAGE = (Path(__file__).parents[1] / "docs" / "rules.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
CASES = {case.name: case for case in (*standard_cases(), *edge_cases(), *tree_cases())}


def table_rows(header: str) -> list[list[str]]:
    """The cells of the table under this header line."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in cells]


def test_the_blocks_print_what_the_page_says() -> None:
    names: dict[str, Any] = {}
    for number, (code, wanted) in enumerate(BLOCK.findall(PAGE), start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"docs/rules.md, block {number}", "exec"), names)
        assert printed.getvalue() == wanted, f"block {number}"


def test_the_table_of_mutants_is_complete() -> None:
    listed = table_rows("| mutant | what is wrong |")
    assert [row[:2] for row in listed] == [[mutant.name, mutant.story] for mutant in MUTANTS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_bias_of_a_mutant(mutant: Any) -> None:
    """Its worst case alone, which is quick; that it *is* the worst is `forerun certify`'s word."""
    _, _, bias, case = next(r for r in table_rows("| mutant |") if r[0] == mutant.name)
    found = certify(
        mutant.subject,
        draw=mutant.draw,
        cases=[CASES[case.removesuffix(", argmax")]],
        addressing=mutant.addressing,
    )
    assert f"{found.bias:.4f}" == bias
    assert found.bias > 0.005  # rejected, and not by a hair
    assert (found.method, found.lossless) == ("exact", False)


@pytest.mark.parametrize("name", rules.names(lossless=False))
def test_the_bias_of_a_lossy_rule(name: str) -> None:
    _, bias, case = next(row for row in table_rows("| rule | bias") if row[0] == name)
    found = certify(name, cases=[CASES[case.removesuffix(", argmax")]])
    assert f"{found.bias:.4f}" == bias
    assert found.worst.case == case
    assert found.bias > 0.1
    assert not found.lossless
