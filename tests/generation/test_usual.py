"""A drafter that was trained for a target is taken without being named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_heads import save_drafter, tiny_llama

import forerun as fr
from forerun.drafters import Heads, Mixed, Model, Suffix
from forerun.generation import choosing
from forerun.generation.choosing import BESIDE, make_drafter, trained_folder, usual_drafter
from forerun.models import HuggingFaceModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a drafter in it."""
    place: Path = tmp_path_factory.mktemp("model")
    model = tiny_llama(seed=3)
    model.save_pretrained(place)
    save_drafter(place / BESIDE, model)
    return place


def wrapped(model: Any, name: Path | str) -> Any:
    target = fr.wrap(model)
    target.name = str(name)
    return target


def test_the_one_in_the_models_folder(folder: Path) -> None:
    target = fr.load(str(folder), lean=False)
    drafter = usual_drafter(target)
    assert isinstance(drafter, Mixed)
    assert [type(part) for part in drafter.drafters] == [Heads, Suffix]
    assert drafter.name == f"heads:{folder / BESIDE}+suffix"
    how: dict[str, Any] = {"max_new_tokens": 20, "draft_length": 3, "ignore_eos": True}
    found = fr.generate(target, [5, 9, 3], **how)
    assert found.tokens == fr.generate(target, [5, 9, 3], drafter=None, **how).tokens
    assert found.stats.drafted > 0
    assert found.stats.notes == []


def test_the_shipped_one_where_it_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "SHIPPED", folder / BESIDE)
    assert trained_folder(wrapped(tiny_llama(seed=3), "elsewhere")) == folder / BESIDE
    assert trained_folder(wrapped(tiny_llama(seed=4), "elsewhere")) is None, "other weights"
    other = tiny_llama(seed=3, num_hidden_layers=4)
    assert trained_folder(wrapped(other, "elsewhere")) is None, "other sizes"


def test_not_where_hidden_states_cannot_be_read(folder: Path) -> None:
    target = HuggingFaceModel(tiny_llama(seed=3), strategy="recompute")
    target.name = str(folder)
    assert usual_drafter(target) == Suffix()
    assert fr.generate(target, [5, 9, 3], max_new_tokens=3).stats.notes == []


@pytest.mark.parametrize("content", [None, "", "{}", '{"format": "other", "version": 1}'])
def test_a_broken_folder_is_no_drafter(tmp_path: Path, content: str | None) -> None:
    (tmp_path / BESIDE).mkdir()
    if content is not None:
        (tmp_path / BESIDE / "heads.json").write_text(content)
    assert trained_folder(wrapped(tiny_llama(seed=3), tmp_path)) is None


def test_a_model_may_be_named_with_its_kind(folder: Path) -> None:
    named: list[str] = []

    def load(name: str) -> Any:
        named.append(name)
        return wrapped(tiny_llama(seed=3), name)

    drafters = [make_drafter(f"{kind}{folder}", load) for kind in ("", "model:")]
    assert [type(drafter) for drafter in drafters] == [Model, Model]
    assert named == [str(folder)] * 2
    assert isinstance(make_drafter(f"model:{folder}+suffix", load), Mixed)
