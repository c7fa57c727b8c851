"""The number of threads that torch would use, found without importing torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba")

from forerun.lean import crew
from forerun.loading import device_choice


def test_torch_is_asked_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 7))
    assert crew.usual_threads() == 7
    monkeypatch.delitem(sys.modules, "torch")
    assert crew.usual_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "none")
    assert crew.usual_threads() == crew.num_cores() >= 1


def test_processors_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert crew.num_cores(tmp_path) == 4  # the system does not say
    for processor, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert crew.num_cores(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    assert crew.num_cores(tmp_path) == 1


def test_a_gpu_is_looked_for_before_torch_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert not device_choice.may_have_gpu(tmp_path)
    (tmp_path / "nvidiactl").write_text("")
    assert device_choice.may_have_gpu(tmp_path)
    monkeypatch.setattr("platform.system", lambda: "Windows")
    assert device_choice.may_have_gpu(tmp_path / "none")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(device_choice, "may_have_gpu", lambda: False)
    assert device_choice.usual_device() is None
    monkeypatch.setattr(device_choice, "may_have_gpu", lambda: True)
    found = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", found)
    assert device_choice.usual_device() == "cuda"
