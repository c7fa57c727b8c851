"""`forerun serve --ray`: checks the flags, and makes a server over replicas on Ray."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from forerun.base.errors import InputError, explain
from forerun.cli.flags.shared import flag_of

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from forerun.cli.serve_models import Shared

FLAGS = ("replicas", "autoscale", "replica_cpus", "replica_gpus", "ready_seconds")
READY_SECONDS = 600


def check(args: argparse.Namespace) -> None:
    """Refuse invalid flags, and flags that need --ray or exclude it, before anything starts."""
    if not args.ray:
        for name in FLAGS:
            if getattr(args, name) is not None:
                cure = "Add --ray, or leave it out."
                raise InputError(
                    explain(f"{flag_of(name)} is about replicas on Ray.", "no --ray", cure)
                )
        return
    if args.tensor_parallel is not None:
        cure = "Leave out one of the two."
        received = "--ray and --tensor-parallel"
        raise InputError(explain("A replica is one process here.", received, cure))
    numbers_of(args)
    if args.ready_seconds is not None and args.ready_seconds < 1:
        cure = "Use 1 or more."
        raise InputError(explain("--ready-seconds is too small.", args.ready_seconds, cure))
    from forerun.scale.ray import check_ray

    check_ray()


def numbers_of(args: argparse.Namespace) -> tuple[int, int]:
    """The smallest and the largest number of replicas."""
    if args.replicas is not None and args.autoscale is not None:
        cure = "Use one of the two."
        received = "--replicas and --autoscale"
        raise InputError(explain("A fixed number does not change.", received, cure))
    if args.autoscale is None:
        number = 1 if args.replicas is None else args.replicas
        least, most = number, number
    else:
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", args.autoscale)
        if match is None:
            cure = "Write the least and the largest number, as 1:8."
            raise InputError(explain("--autoscale has no such form.", args.autoscale, cure))
        least, most = int(match[1]), int(match[2])
    if not 1 <= least <= most:
        cure = "Use 1 replica or more, and the smaller number first."
        received = args.autoscale or args.replicas
        raise InputError(explain("There is no such number of replicas.", received, cure))
    return least, most


def make_app(
    args: argparse.Namespace, stack: ExitStack, shared: Shared, access: Mapping[str, Any]
) -> Starlette:
    """An application over replicas on Ray, which are stopped when the stack closes.

    access: options of `make_app` that say who may use the server.
    """
    from forerun.cli.serve_models import desk_options, public_name
    from forerun.scale.ingress import make_ingress
    from forerun.scale.ray_session import Session
    from forerun.scale.settings import ModelSettings, Scale

    least, most = numbers_of(args)
    session = stack.enter_context(Session())
    cpus = session.usual_cpus(most) if args.replica_cpus is None else args.replica_cpus
    scale = Scale(least, most, cpus, args.replica_gpus or 0.0)
    settings = ModelSettings(
        args.model,
        tuple(args.drafter or ()),
        args.draft_length,
        args.max_batch,
        args.device,
        args.dtype,
        lean=False if args.no_lean else "auto",
        quantize=args.quantize,
        slowdown=args.slowdown,
    )
    replicas, card = session.start(settings, scale, args.ready_seconds or READY_SECONDS)
    names = args.name or [public_name(args.model, card.name)]
    app, _ = make_ingress(
        replicas,
        card,
        settings,
        scale,
        names=names,
        watcher=shared.watcher(names[0], args.rule, settings.drafter_names[0]),
        **desk_options(args, most * args.max_batch),
        **access,
    )
    return app
