"""What is shipped for Ray clusters names options that exist."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from forerun.errors import InputError
from forerun.scale import ray as door

FOLDER = Path(__file__).parents[2] / "deploy" / "ray"


def applications() -> list[dict[str, Any]]:
    config = yaml.safe_load((FOLDER / "serve.yaml").read_text())
    manifest = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    inner = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    return [*config["applications"], *inner["applications"]]


def test_config_files_name_our_application_and_its_options() -> None:
    assert len(applications()) == 2
    for app in applications():
        module, _, name = app["import_path"].partition(":")
        assert (module, hasattr(door, name)) == (door.__name__, True)
        signature(door.deployment).bind(**app["args"])


def test_both_config_files_deploy_the_same_model() -> None:
    file, manifest = (app["args"] for app in applications())
    assert file == {key: value for key, value in manifest.items() if key != "api_key_file"}


def test_an_unknown_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "check_ray", lambda: None)
    with pytest.raises(InputError, match=r"'replica'.*Use the options of"):
        door.application({"replica": 2})


def test_numbers_of_replicas_are_checked() -> None:
    from forerun.scale.settings import Scale

    for least, most in ((0, 1), (2, 1)):
        with pytest.raises(InputError, match="There is no such number of replicas"):
            Scale(least, most)
    with pytest.raises(InputError, match="A replica cannot take less than nothing"):
        Scale(1, 1, num_gpus=-1)
