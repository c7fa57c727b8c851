"""docs/write-a-drafter.md does what it says, and a drafter of somebody else's has a name."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from mypy import api

import forerun as fr
from forerun.drafters import Mixed, Model, NGram, Suffix, registry
from forerun.generation.choosing import make_drafter
from forerun.models import TableModel

ROOT = Path(__file__).parents[2]
PAGE, CONTRIBUTING = ROOT / "docs" / "write-a-drafter.md", ROOT / "CONTRIBUTING.md"
TABLE = TableModel.random(vocab_size=5, order=1, seed=0)


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [PAGE, CONTRIBUTING], ids=lambda page: page.stem)
def test_the_page_runs(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
    assert len(blocks(page)[0].splitlines()) <= 75


@pytest.mark.slow  # half a minute where mypy has no cache
@pytest.mark.parametrize("page", [PAGE, CONTRIBUTING], ids=lambda page: page.stem)
def test_the_example_passes_strict_mypy(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "my_drafter.py"
    file.write_text("\n".join(blocks(page)), encoding="utf-8")
    config = str(ROOT / "pyproject.toml")
    out, err, status = api.run(["--strict", "--config-file", config, str(file)])
    assert (status, err) == (0, ""), out
    file.write_text(file.read_text(encoding="utf-8").replace("list[Guess]:", "list[int]:"))
    assert api.run(["--strict", "--config-file", config, str(file)])[2] == 1


def load(name: str) -> Any:
    if name != "some/model":
        raise fr.InputError(f"no model {name}")
    return TABLE


def test_names() -> None:
    assert make_drafter("none", load) is None
    assert make_drafter("ngram", load) == NGram()
    assert make_drafter("suffix", load) == Suffix()
    model = make_drafter("some/model", load)
    assert isinstance(model, Model)
    assert model.model is TABLE
    both = make_drafter("suffix+some/model", load)
    assert isinstance(both, Mixed)
    assert both.drafters[0] == Suffix()
    early = make_drafter("early-exit:3", load)
    assert early is not None
    assert early.name == "early-exit:3"
    found = make_drafter("early-exit", load)
    assert found is not None
    assert found.name == "early-exit"
    rounded = make_drafter("quantized", load)
    assert rounded is not None
    assert rounded.name == "quantized:int8"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("early-exit:many", "Say how many layers draft, for example early-exit:12"),
        ("quantized:int3", "Unknown quantisation"),
        ("suffix:x", r"suffix takes nothing after a colon. Received 'suffix:x'. Write suffix"),
        ("ngram:3", r"ngram takes nothing after a colon.*NGram\(max_n=3\)"),
        ("", "No drafter is named. Received an empty text. Use ngram"),
        ("nosuch", "no drafter of that name.*'nosuch'. Use ngram, suffix.*; or a model by its hub"),
        ("heads:nofolder", "no such folder.*'nofolder'.*forerun train"),
        ("heads:./no/folder", "no such folder"),
        ("heads:", "no such folder"),
        ("suffix+", r"nothing to mix where no name stands\. Received 'suffix\+'"),
        ("suffix+none", r"nothing to mix where none stands\. Received 'suffix\+none'"),
        ("NGram", "Did you mean ngram"),
        ("EarlyExit", "Did you mean early-exit"),
        ("nowhere/nothing", "no model nowhere/nothing"),
    ],
)
def test_names_that_mean_nothing(spec: str, message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        make_drafter(spec, load)


def test_an_entry_point_adds_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "forerun.drafters:NGram", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    assert "mine" in registry.names()
    assert make_drafter("mine", load) == NGram()
    with pytest.raises(fr.InputError, match="'mine' cannot be made"):
        make_drafter("mine:3", load)
    strange = EntryPoint("strange", "builtins:object", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [strange])
    with pytest.raises(fr.InputError, match=r"does not draft. Received object without start"):
        make_drafter("strange", load)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    assert make_drafter("mine", load) == NGram()
    mixed = make_drafter("mine+suffix", load)
    assert isinstance(mixed, Mixed)
