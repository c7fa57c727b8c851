"""Loads the models of `forerun serve`: one from the command line, or several from a file's
sections.

This file is imported only when a server starts, because it needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from forerun import rules
from forerun.base.errors import InputError, explain
from forerun.cli.loading import load_drafter, load_target, settled, weights_size
from forerun.drafters.base import Drafter
from forerun.serve.http.assembly import make_served, make_watching
from forerun.serve.http.models import Model, Models, Served
from forerun.serve.openai.offer import Limits
from forerun.serve.watching.logs import RequestLog
from forerun.serve.watching.metrics import Families
from forerun.serve.watching.roles import Watcher

GIB = 2**30
Sections = Mapping[str | None, argparse.Namespace]


@dataclass
class Shared:
    """The settings that all models of a server share."""

    families: Families
    log: RequestLog | None
    has_keys: bool
    created: int = field(default_factory=lambda: int(time.time()))

    def watcher(self, name: str, rule: str, drafter: str) -> Watcher:
        return make_watching(
            model=name, drafter=drafter, rule=rule, families=self.families, request_log=self.log
        )


def make_models(sections: Sections, most_bytes: int, shared: Shared) -> Models:
    """The models of a server; the first one is loaded now. most_bytes: a limit for all of them
    together."""
    (first, args), *others = sections.items()
    if not others:
        return Models([_loaded_model(first, args, 0, shared)])
    sizes = {name: num_bytes_of(name, one) for name, one in sections.items()}
    if sizes[first] > most_bytes:
        cure = "Put a smaller model first, or give models more with memory-gib."
        received = f"{sizes[first] / GIB:.2f} GiB, and {most_bytes / GIB:.2f} GiB for models"
        raise InputError(explain(f"The first model, {first}, does not fit.", received, cure))
    models = [_loaded_model(first, args, sizes[first], shared)]
    for name, one in others:
        names = [str(name), *(one.name or ())]
        watcher = shared.watcher(names[0], one.rule, (one.drafter or ["auto"])[0])
        load = partial(_load, one, names, watcher, shared)
        models.append(Model(names, load, sizes[name], watcher))
    return Models(models, most_bytes)


def _loaded_model(
    name: str | None, args: argparse.Namespace, num_bytes: int, shared: Shared
) -> Model:
    target, drafters = load_pair(args)
    names = args.name or [public_name(args.model, target.name)]
    if name is not None:
        names = [name, *(args.name or ())]
    watcher = shared.watcher(names[0], args.rule, next(iter(drafters)))
    served = _served(target, drafters, args, names, watcher, shared)
    load = partial(_load, args, names, watcher, shared)
    return Model(names, load, num_bytes, watcher, served)


def _load(
    args: argparse.Namespace, names: Sequence[str], watcher: Watcher, shared: Shared
) -> Served:
    return _served(*load_pair(args), args, names, watcher, shared)


def load_pair(args: argparse.Namespace) -> tuple[Any, dict[str, Drafter | None]]:
    """Load a model and its drafters by name."""
    names = args.drafter or ["auto"]
    drafters = {name: load_drafter(name, args.device, args.dtype) for name in names}
    drafters.setdefault("none", None)
    lean: Any = False if args.no_lean else "auto"
    target = load_target(
        args.model, args.device, args.dtype, lean, args.quantize, args.tensor_parallel,
        args.gpu_memory, args.kv_dtype,
    )  # fmt: skip
    if args.tensor_parallel is not None:
        target.ranks.on_failure = end_at_once
    return target, settled(drafters, target)


def _served(
    target: Any,
    drafters: Mapping[str, Drafter | None],
    args: argparse.Namespace,
    names: Sequence[str],
    watcher: Watcher,
    shared: Shared,
) -> Served:
    return make_served(
        target,
        drafters,
        names=names,
        watcher=watcher,
        has_keys=shared.has_keys,
        created=shared.created,
        max_batch=args.max_batch,
        draft_length=args.draft_length,
        slowdown=args.slowdown,
        **desk_options(args, args.max_batch),
    )


def desk_options(args: argparse.Namespace, max_batch: int) -> dict[str, Any]:
    """The options of the desk that serves a model, here or in a replica. max_batch: the most
    answers at once."""
    return {
        "rule": args.rule,
        "rules": check_rules(args.rule, args.rules),
        "max_queue": args.max_queue,
        "limits": limits_for(args.max_tokens, max_batch + args.max_queue),
    }


def num_bytes_of(name: str | None, args: argparse.Namespace) -> int:
    """The memory that a model needs: as its section says, or the size of its weights."""
    if args.needs_gib is not None:
        return int(args.needs_gib * GIB)
    size = weights_size(args.model)
    if size is None:
        cure = "Add needs-gib to its section."
        wrong = f"It is not known how much memory the model {name} takes."
        raise InputError(explain(wrong, f"model = {args.model!r}, which is not here yet", cure))
    return size


def limits_for(max_tokens: int | None, num_places: int) -> Limits:
    """The limits of a request. It may have no more answers than the server has places, or it would
    never start."""
    max_choices = min(Limits.max_choices, num_places)
    return Limits(max_tokens=max_tokens, max_choices=max_choices)


def check_rules(rule: str, listed: str | None) -> list[str]:
    """The rules that a request may name, the default first; raises for unknown ones."""
    named = [] if listed is None else [name.strip() for name in listed.split(",")]
    for name in (rule, *named):
        rules.get(name)
    if not rules.get(rule).lossless and rule not in named:
        cure = f"Allow it with --rules {rule}, or use match."
        raise InputError(explain("The rule is lossy, so texts would change.", rule, cure))
    return list(dict.fromkeys([rule, *(named or rules.names(lossless=True))]))


def end_at_once(reason: str) -> None:
    """End this process, because losing a rank breaks every engine; a supervisor has to restart
    it."""
    print(f"forerun serve: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def public_name(model: str | None, name: str) -> str:
    """A model's id for clients. For a folder or a file this is only its last part, so that paths
    stay private.

    model: as named on the command line.
    name: the loaded model's own.
    """
    if model is None or not Path(model).exists():
        return name
    path = Path(model)
    if path.is_dir():  # a file may be a link to a digest
        path = path.resolve()
    return path.name + (name.removeprefix(model) if model in name else "")
