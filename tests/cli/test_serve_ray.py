"""`forerun serve --ray`: flags that mean nothing are refused before anything is started."""

from __future__ import annotations

import importlib.metadata as metadata

import pytest

from forerun.cli import main
from forerun.scale import ray as door


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replicas", "2"], "--replicas is about replicas on Ray"),
        (["--autoscale", "1:2"], "--autoscale is about replicas on Ray"),
        (["--replica-gpus", "1"], "--replica-gpus is about replicas on Ray"),
        (["--ready-seconds", "9"], "--ready-seconds is about replicas on Ray"),
        (["--ray", "--replicas", "2", "--autoscale", "1:2"], "A fixed number does not change"),
        (["--ray", "--autoscale", "3"], "Write the least and the largest number, as 1:8"),
        (["--ray", "--autoscale", "8:1"], "There is no such number of replicas"),
        (["--ray", "--replicas", "0"], "There is no such number of replicas"),
        (["--ray", "--ready-seconds", "0"], "--ready-seconds is too small"),
    ],
)
def test_flags(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        (None, 'Install it with: pip install "forerun[ray]"'),
        ("2.9.3", "Ray is too old. Received ray 2.9.3. Install 2.60 or newer"),
    ],
)
def test_no_ray_or_an_old_one(
    installed: str | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(door, "version", version)
    assert main(["serve", "--ray"]) == 2
    assert told in capsys.readouterr().err
