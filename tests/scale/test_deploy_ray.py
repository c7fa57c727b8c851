"""What is shipped for Ray clusters names options that exist."""

from __future__ import annotations

import sys
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from forerun.base.errors import InputError
from forerun.scale import ray

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
        assert (module, hasattr(ray, name)) == (ray.__name__, True)
        signature(ray.deployment).bind(**app["args"])


def test_both_config_files_deploy_the_same_model() -> None:
    file, manifest = (app["args"] for app in applications())
    assert file == manifest


def test_both_config_files_ask_for_keys_and_name_their_hosts() -> None:
    for app in applications():
        assert app["args"]["api_key_file"]
        assert app["args"]["allowed_hosts"] == ["llm.example.org"]


def test_images_are_named_by_digest() -> None:
    manifest = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    cluster = manifest["spec"]["rayClusterConfig"]
    images = [
        container["image"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
        for container in group["template"]["spec"]["containers"]
    ]
    assert images == ["REGISTRY/forerun-ray@sha256:DIGEST"] * 2  # to be filled in


def test_keys_and_hosts_reach_the_ingress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    parts = ModuleType("forerun.scale.ray_parts")
    parts.model_replicas = lambda settings, scale: None  # type: ignore[attr-defined]
    parts.ingress_over = lambda *args: made.update(args[-1])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, parts.__name__, parts)
    monkeypatch.setattr(ray, "check_ray", lambda: None)
    (tmp_path / "keys").write_text("secret-of-one\n")
    for app in applications():
        ray.application(app["args"] | {"api_key_file": str(tmp_path / "keys")})
        assert made["hosts"] == ("llm.example.org",)
        assert made["keys"] is not None
        made.clear()


def test_an_unknown_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "check_ray", lambda: None)
    with pytest.raises(InputError, match=r"'replica'.*Use the options of"):
        ray.application({"replica": 2})


def test_numbers_of_replicas_are_checked() -> None:
    from forerun.scale.settings import Scale

    for least, most in ((0, 1), (2, 1)):
        with pytest.raises(InputError, match="There is no such number of replicas"):
            Scale(least, most)
    with pytest.raises(InputError, match="A replica cannot take less than nothing"):
        Scale(1, 1, num_gpus=-1)
