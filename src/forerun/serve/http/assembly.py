"""Puts a complete server together from its parts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette

from forerun.drafters.base import Drafter
from forerun.rules.types import DraftLength
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.keys import Keys
from forerun.serve.http.app import make_app
from forerun.serve.http.models import Model, Models, Served
from forerun.serve.http.requests import Bounds
from forerun.serve.openai.fingerprint import Fingerprint
from forerun.serve.openai.offer import Limits, Offer
from forerun.serve.openai.routes import queries, text_routes
from forerun.serve.openai.routes.queries import card_of
from forerun.serve.watching.logs import AnswerLog, RequestLog
from forerun.serve.watching.metrics import Families, Metrics
from forerun.serve.watching.roles import Watcher, Watching
from forerun.serve.watching.tracing import make_tracing


def make_served(
    target: Any,
    drafters: Mapping[str, Drafter | None],
    *,
    names: Sequence[str] = (),
    watcher: Watcher | None = None,
    rule: str = "match",
    draft_length: DraftLength = "auto",
    limits: Limits | None = None,
    has_keys: bool = False,
    model_digest: str | None = None,
    created: int | None = None,
    **desk: Any,
) -> Served:
    """Wrap a loaded model with its desk and routes. desk: further options of `Desk`.

    names: the model's id for clients, and other names for it; by default the model's own name.
    has_keys: whether clients need a key.
    model_digest: see `Fingerprint`.
    created: when the server started, in seconds since 1970.
    """
    name, *others = names or [target.name]
    if watcher is None:
        watcher = make_watching(model=name, drafter=next(iter(drafters)), rule=rule)
    counter = Desk(target, drafters, rule=rule, draft_length=draft_length, watcher=watcher, **desk)
    offer = Offer(
        counter.target,
        name,
        tuple(counter.drafters),
        tuple(counter.rules),
        limits or Limits(),
        tuple(others),
    )
    return Served(
        counter,
        {route.path: route for route in text_routes(offer)},
        {query.path: query for query in queries(offer, has_keys=has_keys)},
        Fingerprint(offer, draft_length, model_digest),
        card_of(offer, int(time.time()) if created is None else created),
    )


def make_server(
    target: Any,
    drafters: Mapping[str, Drafter | None],
    *,
    names: Sequence[str] = (),
    keys: Keys | None = None,
    bounds: Bounds | None = None,
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    **options: Any,
) -> tuple[Starlette, Desk]:
    """Make the application for one model, and its desk. Options are as for `make_served` and
    `make_app`."""
    names = names or [target.name]
    served = make_served(target, drafters, names=names, has_keys=keys is not None, **options)
    model = Model(names, watcher=served.desk.watcher, served=served)
    app = make_app(
        Models([model]), keys=keys, bounds=bounds, cors_origins=cors_origins, hosts=hosts
    )
    return app, served.desk


def make_watching(
    *,
    model: str,
    drafter: str,
    rule: str,
    families: Families | None = None,
    request_log: RequestLog | None = None,
) -> Watching:
    """Make the watcher of a model: metrics, log lines, and spans if OpenTelemetry is installed.

    families: the metrics that the models of a server share.
    """
    others: list[Watcher] = [AnswerLog(model=model)]
    if request_log is not None:
        others.append(AnswerLog(model=model, tell=request_log))
    if (tracing := make_tracing(model)) is not None:
        others.append(tracing)
    return Watching(Metrics(model=model, drafter=drafter, rule=rule, families=families), *others)
