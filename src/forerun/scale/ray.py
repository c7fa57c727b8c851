"""The server on Ray Serve: replicas of a model behind an ingress that survives their deaths.

    # my_app.py, for `serve run my_app:app`
    from forerun.scale.ray import deployment
    app = deployment("Qwen/Qwen3-8B", drafters=["suffix"], autoscale=(1, 8), num_gpus=1)

A Serve config file names `forerun.scale.ray:application` instead, with the same options as `args`.
The ingress reads requests, formats answers, draws seeds and keeps the tokens so far; the replicas
hold the model. See `docs/scale.md`. `map_batches` runs the same model as a step of a Ray Data
pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.engine.pacing import SLOWDOWN
from forerun.rules.types import DraftLength
from forerun.scale.ray_data import map_batches as map_batches
from forerun.scale.settings import ModelSettings, Scale
from forerun.serve.admission.keys import Keys
from forerun.serve.http.requests import Bounds
from forerun.serve.openai.offer import Limits

OLDEST = (2, 60)
"""The first version of Ray that has everything used here."""


def deployment(
    model: str | None = None,
    *,
    drafters: Sequence[str] = (),
    rule: str = "match",
    rules: Sequence[str] | None = None,
    draft_length: DraftLength = "auto",
    max_batch: int = 8,
    max_queue: int = 64,
    slowdown: float = SLOWDOWN,
    replicas: int = 1,
    autoscale: tuple[int, int] | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    device: str | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    name: str | None = None,
    api_key_file: str | None = None,
    cors_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    num_ingresses: int = 1,
) -> Any:
    """An application for Ray Serve: `serve.run(deployment(...))`.

    model, drafters: names as for `forerun serve`; every machine must be able to find them.
    replicas: their number; or autoscale=(least, most), by the number of answers that wait or run.
    num_cpus, num_gpus: the resources of each replica.
    max_queue: how many answers may wait; further requests get status 429.
    slowdown: as for `AsyncEngine`.
    allowed_hosts: names under which the server may be called; none means any.
    num_ingresses: each ingress has its own queue, metrics, and limits of keys.
    """
    check_ray()
    from forerun.scale.ray_parts import ingress_over, model_replicas

    least, most = (replicas, replicas) if autoscale is None else autoscale
    settings = ModelSettings(
        model,
        tuple(drafters),
        draft_length,
        max_batch,
        device,
        dtype,
        quantize=quantize,
        slowdown=slowdown,
    )
    scale = Scale(least, most, num_cpus, num_gpus)
    options = {
        "rule": rule,
        "rules": rules,
        "max_queue": max_queue,
        "keys": None if api_key_file is None else Keys.from_file(api_key_file),
        "limits": Limits(max_choices=min(Limits.max_choices, most * max_batch + max_queue)),
        "bounds": Bounds(),
        "cors_origins": tuple(cors_origins),
        "hosts": tuple(allowed_hosts),
        "names": () if name is None else (name,),
    }
    return ingress_over(model_replicas(settings, scale), settings, scale, num_ingresses, options)


def application(args: Mapping[str, Any]) -> Any:
    """The application for a Serve config file, whose `args` are the options of `deployment`."""
    options = dict(args)
    if isinstance(options.get("autoscale"), Sequence):
        options["autoscale"] = tuple(options["autoscale"])
    try:
        return deployment(**options)
    except TypeError as error:
        cure = "Use the options of forerun.scale.ray.deployment."
        raise InputError(explain(f"{error}.", sorted(options), cure)) from error


def check_ray() -> None:
    """Raise if Ray is missing or too old."""
    try:
        installed = version("ray")
    except PackageNotFoundError as error:
        cure = 'Install it with: pip install "forerun[ray]"'
        raise MissingExtraError(explain("Ray is an extra.", "no Ray", cure)) from error
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        least = ".".join(map(str, OLDEST))
        cure = f'Install {least} or newer: pip install -U "forerun[ray]"'
        raise MissingExtraError(explain("Ray is too old.", f"ray {installed}", cure))
