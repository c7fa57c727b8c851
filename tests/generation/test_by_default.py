"""What a call does when nothing is said: it speculates, and names stand for models and drafters."""

from __future__ import annotations

import gc
import inspect
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from reciting import TEXT, Reciter

import forerun as fr
from forerun.drafters import Mixed, Model, NGram, Suffix, ThroughText
from forerun.generation.choosing import drafter_for, drafters_for, usual_drafter
from forerun.loading import named
from forerun.models import TableModel

TABLE = TableModel.random(vocab_size=4, order=1, seed=3)
CHAINS, TREES = ("ratio", "block", "siblings", "traversal"), ("siblings", "traversal")
PROMPT = [1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize("front_door", [fr.generate, fr.stream, fr.AsyncEngine])
def test_the_signature_says_so(front_door: Any) -> None:
    assert inspect.signature(front_door).parameters["drafter"].default == "auto"


def test_a_call_speculates_and_says_the_same() -> None:
    how: dict[str, Any] = {"draft_length": 3, "max_new_tokens": 60}
    plain = fr.generate(TABLE, PROMPT, drafter=None, **how)
    found = fr.generate(TABLE, PROMPT, **how)
    assert found.tokens == plain.tokens
    assert found.stats.accepted > 0
    assert found.stats.notes == []
    assert plain.stats.drafted == 0
    pieces = fr.stream(TABLE, PROMPT, **how)
    assert [token for piece in pieces for token in piece.tokens] == plain.tokens
    assert pieces.results().stats.accepted > 0


@pytest.mark.parametrize(
    ("rule", "tree"),
    [*((rule, None) for rule in CHAINS), *((rule, fr.Tree.of_branching((2, 2))) for rule in TREES)],
)
def test_it_serves_every_rule(rule: str, tree: fr.Tree | None) -> None:
    sampling = fr.Sampling(seed=1, temperature=0.3)
    found = fr.generate(
        TABLE, PROMPT, rule=rule, tree=tree, draft_length=3, sampling=sampling, max_new_tokens=60
    )
    assert found.stats.accepted > 0
    assert [note for note in found.stats.notes if "cannot score trees" not in note] == []


def test_a_name_of_the_command_line_is_a_drafter() -> None:
    plain = fr.generate(TABLE, PROMPT, drafter=None, max_new_tokens=30)
    for name in ("ngram", "suffix+ngram"):
        found = fr.generate(TABLE, PROMPT, drafter=name, draft_length=3, max_new_tokens=30)
        assert found.tokens == plain.tokens
        assert found.stats.accepted > 0
    named_none = fr.generate(TABLE, PROMPT, drafter="none", max_new_tokens=30)
    assert named_none.stats.drafted == 0
    assert Mixed("ngram", Suffix()).name == "ngram+suffix"


def test_a_named_drafter_is_made_once_for_each_target() -> None:
    other = TableModel.random(vocab_size=4, order=1, seed=3)
    assert drafter_for(TABLE, "ngram") is drafter_for(TABLE, "ngram")
    assert drafter_for(TABLE, "auto") is drafter_for(TABLE, "auto")
    assert drafter_for(TABLE, "auto") is not drafter_for(other, "auto")
    own = NGram()
    assert drafter_for(TABLE, own) is own


def test_what_was_made_for_a_target_goes_with_it() -> None:
    target = TableModel.random(vocab_size=4, order=1, seed=0)
    fr.generate(target, PROMPT, max_new_tokens=9)
    fr.generate(target, PROMPT, drafter="suffix+ngram", max_new_tokens=9)
    drafter, gone = weakref.ref(drafter_for(target, "suffix+ngram")), weakref.ref(target)
    del target
    gc.collect()
    assert gone() is None
    assert drafter() is None


def test_several_drafters_by_name() -> None:
    ngram = NGram()
    assert drafters_for(TABLE, ngram) == {"ngram": ngram}
    assert list(drafters_for(TABLE, "suffix")) == ["suffix"]
    assert list(drafters_for(TABLE, ["suffix", ngram, "none"])) == ["suffix", "ngram"]
    assert drafters_for(TABLE, {"mine": ngram, "not": None}) == {"mine": ngram}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Loading a model by its name makes a table, and is noted."""
    names: list[str] = []

    def load(name: str) -> Any:
        names.append(name)
        return Reciter(TEXT)

    monkeypatch.setattr(import_module("forerun.loading.load"), "load", load)
    monkeypatch.setattr(named, "load", load)
    monkeypatch.setattr(named, "_last", {})
    return names


def test_a_name_is_a_model(loads: list[str]) -> None:
    """The last one is kept, so that a second call does not load it again."""
    expected = fr.generate(Reciter(TEXT), "the", max_new_tokens=6).text
    for _ in range(2):
        assert fr.generate("some/model", "the", max_new_tokens=6).text == expected
    assert loads == ["some/model"]
    assert "".join(p.text for p in fr.stream(Path("other"), "the", max_new_tokens=6)) == expected
    fr.generate("some/model", "the", max_new_tokens=6)
    assert loads == ["some/model", "other", "some/model"]


def test_a_drafting_model_by_its_name(loads: list[str]) -> None:
    target = Reciter(TEXT)
    for _ in range(2):
        found = fr.generate(target, "the", drafter="some/model", max_new_tokens=20, draft_length=3)
        assert found.stats.acceptance_rate == 1
    assert loads == ["some/model"], "it is kept with the target"
    assert Model("another").name == ThroughText(Path("another")).model.name == "reciter"
    assert loads == ["some/model", "another", "another"]
    assert fr.wrap("third").name == "reciter"


def test_the_usual_drafter_of_a_model_that_nobody_trained_for() -> None:
    assert usual_drafter(TABLE) == Suffix()
