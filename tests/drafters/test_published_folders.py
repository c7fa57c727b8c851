"""What is wrong with a folder is told before a pass runs, whichever kind of drafter it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from published_folders import KINDS
from safetensors.torch import load_file, save_file
from tiny_heads import tiny_llama

import forerun as fr
from forerun.base.errors import ForerunError, UnsupportedError
from forerun.generation.choosing import make_drafter

PUBLISHED = [kind for kind in KINDS if kind not in ("heads", "block")]


def refusal(kind: str, folder: Path, target: Any = None) -> str:
    """The message with which a folder is refused; no pass is run."""
    name, _ = KINDS[kind]
    with pytest.raises(ForerunError) as told:
        make_drafter(f"{name}:{folder}").start(target or fr.wrap(tiny_llama(3)), 1, 20)
    return str(told.value)


def weights(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def altered(kind: str, folder: Path, change: Any) -> tuple[Path, str]:
    """A folder of which one matrix was changed, and the matrix's name."""
    file = weights(KINDS[kind][1](folder))
    tensors = load_file(file)
    (*_, name) = sorted(n for n, v in tensors.items() if v.ndim > 1 and n != "lm_head.weight")
    tensors |= {name: change(tensors[name])}
    save_file({n: v.contiguous() for n, v in tensors.items() if v is not None}, file)
    return folder, name


@pytest.fixture(autouse=True)
def _no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(fr.wrap(tiny_llama(3))), "score", lambda *_: pytest.fail("a pass ran"))


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_is_named_with_the_drafter_that_reads_it(kind, tmp_path):
    own, write = KINDS[kind]
    folder, same = write(tmp_path / "folder"), {own, "heads"} if own == "eagle3" else {own}
    same |= {"block", "dflash"} if own in ("block", "dflash") else set()  # one class reads both
    for other in {name for name, _ in KINDS.values()} - same:
        with pytest.raises(UnsupportedError, match=f"Name it {own}:{folder}"):
            make_drafter(f"{other}:{folder}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["dropped", "narrow", "whole numbers"])
def test_tensors_that_are_not_as_promised_are_named(what, kind, tmp_path):
    change = {
        "dropped": lambda _: None,
        "narrow": lambda values: values[:-1],
        "whole numbers": lambda values: values.to(torch.int32),
    }[what]
    folder, name = altered(kind, tmp_path / "folder", change)
    if kind in ("heads", "block"):  # the numbers of 8 bits and their scales are one weight
        name = name.removesuffix(".scale").removesuffix(".q8")
    name = name.replace("midlayer", "layers.0")  # as messages call it
    if kind == "medusa":
        name = name.replace("1.1.", "1.head.")
    if kind in ("heads", "block") and what != "dropped":
        name = "stored as int32" if what == "whole numbers" else "cut short or broken"
    assert name in refusal(kind, folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_is_refused(value, kind, tmp_path):
    def spoil(values: Any) -> Any:
        values.view(-1)[-1] = value
        return values

    folder, _ = altered(kind, tmp_path / "folder", spoil)
    assert "holds NaN or infinity" in refusal(kind, folder)


class Evil:
    """A pickle of it runs code where it is read carelessly."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm-was-done"),))


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("extra", [Evil(), {"step": 3}], ids=["code", "numbers"])
def test_a_pickle_with_more_than_tensors_is_never_run(extra, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = KINDS[kind][1](tmp_path / "folder")
    file = weights(folder)
    torch.save({**load_file(file), "more": extra}, folder / "pytorch_model.bin")
    file.unlink()
    assert "holds more than tensors" in refusal(kind, folder)
    assert not (tmp_path / "harm-was-done").exists()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "speculators" in kind])
def test_a_newer_layout_is_named(kind, tmp_path):
    folder = KINDS[kind][1](tmp_path / "folder")
    about = json.loads((folder / "config.json").read_text())
    for newer in ({"speculators_version": "1.2.0"}, {"speculators_model_type": "eagle9"}):
        (folder / "config.json").write_text(json.dumps(about | newer))
        assert str(*newer.values()) in refusal(kind, folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{"hidden_size": 48}, {"vocab_size": 71}])
def test_the_drafter_of_another_target_is_refused(changes, kind, tmp_path):
    ((what, size),) = changes.items()
    told = refusal(kind, KINDS[kind][1](tmp_path / "folder"), fr.wrap(tiny_llama(3, **changes)))
    assert f"{what} is {size} rather than" in told


@pytest.mark.parametrize("kind", [k for k in KINDS if KINDS[k][0] not in ("medusa", "mtp")])
def test_a_target_of_too_few_layers_is_refused(kind, tmp_path):
    """A Medusa head reads the last state of any target, and so does an MTP layer in a folder of
    its own."""
    target = fr.wrap(tiny_llama(3, num_hidden_layers=3))
    assert "layers" in refusal(kind, KINDS[kind][1](tmp_path / "folder"), target)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "mtp"])
def test_norms_of_heads_come_in_pairs(kind, tmp_path):
    folder = KINDS[kind][1](tmp_path / "folder")
    tensors = load_file(weights(folder))
    (name, *_) = sorted(name for name in tensors if name.endswith("q_norm.weight"))
    del tensors[name]
    save_file(tensors, weights(folder))
    assert f"1 missing: {name}" in refusal(kind, folder)
