"""What contributors meet first: CI, hooks, templates and the changelog agree with the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from forerun import __version__

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
TARGET = re.compile(r"\bmake ([a-z-]+)")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def targets(text: str) -> set[str]:
    """The make targets that a script runs; comments count for nothing."""
    return set(TARGET.findall("\n".join(line.split("#")[0] for line in text.splitlines())))


def test_the_workflow_runs_what_a_submission_must_pass() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"].values()
    runs = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
    asked = targets((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert asked
    assert targets(runs) == asked | {"wheel"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets(runs) if f"\n{name}:" not in makefile] == []


def test_the_workflow_runs_on_every_python_that_is_promised() -> None:
    pythons = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert pythons == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)


def test_hooks_are_what_make_setup_installs() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        assert program.removeprefix(".venv/bin/") in ("ruff", "mypy", "python")
        re.compile(hook.get("files", ""))


def test_one_file_can_be_tested() -> None:
    """CONTRIBUTING names a file that there is, and make passes it on."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (asked,) = re.findall(r"`make (test-fast TESTS=(\S+))`", page)
    assert (ROOT / asked[1]).is_file()
    how = ["make", "--no-print-directory", "--dry-run", *asked[0].split()]
    said = subprocess.run(how, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].endswith(asked[1])


def test_make_test_gpu_names_the_folders_that_hold_gpu_tests() -> None:
    """And no other: what those import may be missing beside a CUDA build of torch."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (names,) = re.findall(r"^GPU_TESTS = .*tests/,(.*)\)$", makefile, re.MULTILINE)
    marked = re.compile(r"mark\.gpu\b|\bON_DEVICE\b")
    found = {
        file.relative_to(ROOT / "tests").parts[0]
        for file in (ROOT / "tests").rglob("test_*.py")
        if marked.search(file.read_text(encoding="utf-8")) and file != Path(__file__)
    }
    assert set(names.split()) == found


def test_bug_reports_must_hold_forerun_info() -> None:
    for name, is_required in (("bug", True), ("feature", False)):
        fields = read(f".github/ISSUE_TEMPLATE/{name}.yml")["body"]
        (info,) = [field for field in fields if field.get("id") == "info"]
        assert "forerun info" in info["attributes"]["label"]
        assert info.get("validations", {}).get("required", False) == is_required
    template = (ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    assert "forerun info" in template
    assert "CHANGELOG.md" in template


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\](?: - \d{4}-\d\d-\d\d)?$", text, re.MULTILINE)
    assert versions[:2] == ["Unreleased", __version__]
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert kinds
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
