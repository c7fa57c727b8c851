"""Who may have written what is in the cache: several users share one, and none of them decides on
another's texts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from forerun.lean import kept_file
from forerun.loading import cache
from forerun.loading.cache import cache_folder, close_to_others, is_ours, make_in_cache

if not hasattr(os, "geteuid"):
    pytest.skip("a system whose files have no owners", allow_module_level=True)


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it another user's: for whoever may, in truth, and else by being somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 4321, 4321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4321)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o002, 0o755), (0o077, 0o700)])
def test_folders_have_the_modes_of_the_umask_and_are_closed_to_writers(
    umask: int, mode: int, chosen: Path
) -> None:
    before = os.umask(umask)
    try:
        make_in_cache(chosen / "packed")
    finally:
        os.umask(before)
    assert [mode_of(chosen), mode_of(chosen / "packed")] == [mode, mode]
    assert is_ours(chosen / "packed")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o644), (0o077, 0o600)])
def test_kept_files_have_the_modes_of_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    """A cache that one user fills and others read, as an image has it."""
    before = os.umask(umask)
    try:
        kept_file.write(tmp_path / "file", np.arange(3))
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == mode


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_in_a_cache_that_others_may_write_to_each_user_has_a_folder(
    mode: int, chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen.mkdir()
    chosen.chmod(mode)
    mine = cache_folder()
    assert mine.parent == chosen
    make_in_cache(mine / "packed")
    (mine / "packed" / "model").write_text("weights")
    assert is_ours(mine / "packed" / "model")
    assert mode_of(mine) == 0o700
    assert cache.why_not_cached() == ""
    monkeypatch.setattr(os, "geteuid", lambda: 98765)
    assert cache_folder() == chosen / "of-98765"
    assert not is_ours(mine / "packed" / "model")
    assert cache.why_not_cached() == ""


def test_what_another_user_wrote_is_not_believed(
    chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_in_cache(chosen / "packed")
    file = chosen / "packed" / "model"
    file.write_text("weights")
    assert is_ours(file)
    give_away(file, monkeypatch)
    assert not is_ours(file)


@pytest.mark.parametrize("which", [".", "packed", "packed/model"])
def test_what_others_may_write_is_not_believed(which: str, chosen: Path) -> None:
    make_in_cache(chosen / "packed")
    file = chosen / "packed" / "model"
    file.write_text("weights")
    (chosen / which).chmod(0o775)
    assert not is_ours(file)
    if which == "packed":
        close_to_others(chosen / "packed")
        assert is_ours(file)


def test_a_folder_of_ones_name_that_another_made_is_told(
    chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen.mkdir()
    chosen.chmod(0o777)
    mine = cache_folder()
    mine.mkdir()
    mine.chmod(0o777)
    assert cache.why_not_cached() == f"{mine} may be written to by others"
    (mine / "model").write_text("weights")
    assert not is_ours(mine / "model")
