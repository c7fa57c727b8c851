"""The copy of a GGUF file in the cache: used as it is, or made anew if it was changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write
from tiny_models import Architecture

from forerun.base.errors import InputError
from forerun.gguf import copy
from forerun.gguf.copy import LIST
from forerun.loading import bundled
from forerun.loading.bundled import local_copy

WEIGHTS = "model-1.safetensors"


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    write(path, Architecture("llama", "", {"num_hidden_layers": 1}).build().float())
    return path


def copy_of(path: Path) -> Path:
    folder = local_copy(str(path))
    assert folder is not None
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != LIST}


def change(name: str, old: bytes, new: bytes) -> Callable[[Path], Any]:
    def changed(folder: Path) -> None:
        before = (folder / name).read_bytes()
        assert old in before
        (folder / name).write_bytes(before.replace(old, new, 1))

    return changed


def flip(folder: Path) -> None:
    """One bit of a weight, and the time that the file had."""
    file = folder / WEIGHTS
    before, damaged = file.stat(), bytearray(file.read_bytes())
    damaged[-100] ^= 1
    file.write_bytes(damaged)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "one bit": flip,
    "another tensor": change(WEIGHTS, b"up_proj", b"uq_proj"),
    "another size": change("config.json", b'"rms_norm_eps": ', b'"rms_norm_eps": 1'),
    "other tokens": change("tokenizer.json", b'"hello"', b'"hullo"'),
    "a file less": lambda folder: (folder / "model.safetensors.index.json").unlink(),
    "a file more": lambda folder: shutil.copy(folder / WEIGHTS, folder / "model.safetensors"),
    "cut off": lambda folder: os.truncate(folder / WEIGHTS, 1000),
    "no file": empty,
    "a list that is none": lambda folder: (folder / LIST).write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_copy_that_was_changed_is_made_anew(
    damage: Callable[[Path], Any], path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(path)
    whole = contents(folder)
    capfd.readouterr()
    damage(folder)
    assert copy_of(path) == folder
    assert contents(folder) == whole
    assert "the copy of tiny in the cache was changed or damaged" in capfd.readouterr().err
    assert list(folder.parent.iterdir()) == [folder]


def test_files_that_were_not_touched_are_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    read: list[str] = []
    digest = copy._digest

    def watched(file: Path) -> str:
        read.append(file.name)
        return digest(file)

    folder = copy_of(path)
    capfd.readouterr()
    monkeypatch.setattr(copy, "_digest", watched)
    copy_of(path)
    assert read == []
    os.utime(folder / WEIGHTS)
    (folder / ".hidden").touch()
    copy_of(path)
    copy_of(path)
    assert read == [WEIGHTS], "once"
    assert capfd.readouterr().err == "", "nothing was converted"


def test_a_copy_of_an_earlier_version_is_made_anew_once(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(path)
    (folder / LIST).unlink()
    (folder / "config.json").write_text("{}")
    capfd.readouterr()
    copy_of(path)
    assert "changed" not in capfd.readouterr().err
    assert (folder / "config.json").read_text() != "{}"
    assert (folder / LIST).exists()


def test_a_copy_of_an_earlier_version_is_used_where_nothing_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    folder = copy_of(path)
    monkeypatch.setattr(bundled, "TemporaryDirectory", refuse)
    (folder / LIST).unlink()
    assert copy_of(path) == folder
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match="cannot be converted"):
        copy_of(path)


@pytest.mark.parametrize("is_unlisted", [False, True])
def test_a_copy_outlives_its_package(
    is_unlisted: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "packaged_parts", lambda _: [path])
    folder = local_copy(bundled.NAME)
    assert folder is not None
    if is_unlisted:
        (folder / LIST).unlink()
    monkeypatch.setattr(bundled, "packaged_parts", lambda _: [])
    assert local_copy(bundled.NAME) == folder
    (folder / "config.json").unlink()
    assert local_copy(bundled.NAME) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_copy_that_others_may_write_to_is_made_anew(path: Path) -> None:
    folder = copy_of(path)
    before = contents(folder)
    (folder / WEIGHTS).write_bytes(before[WEIGHTS][:-8] + bytes(8))
    copy.write_list(folder)  # as whoever may write to the folder can
    folder.chmod(0o777)
    assert contents(copy_of(path)) == before
