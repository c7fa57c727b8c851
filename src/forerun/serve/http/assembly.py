"""A whole server out of its parts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette

from forerun.drafters.base import Drafter
from forerun.engine.pacing import SLOWDOWN
from forerun.rules.types import DraftLength
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.engine_deaths import Trial
from forerun.serve.admission.engine_roles import Pool
from forerun.serve.admission.keys import Keys
from forerun.serve.http.app import make_app
from forerun.serve.http.bounds import Bounds
from forerun.serve.openai.fingerprint import Fingerprint
from forerun.serve.openai.offer import Limits, Offer
from forerun.serve.openai.routes import queries, text_routes
from forerun.serve.watching.watchers import make_watching


def make_server(
    target: Any,
    drafters: Mapping[str, Drafter | None],
    *,
    rule: str = "match",
    rules: Sequence[str] | None = None,
    draft_length: DraftLength = "auto",
    max_batch: int = 8,
    max_queue: int = 64,
    slowdown: float = SLOWDOWN,
    keys: Keys | None = None,
    limits: Limits | None = None,
    bounds: Bounds | None = None,
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    name: str | None = None,
    engines: Pool | None = None,
    trial: Trial | None = None,
    model_digest: str | None = None,
) -> tuple[Starlette, Desk]:
    """The application and its desk; options as for `Desk` and `make_app`.

    name: the model's id for clients; its own if None.  model_digest: see `Fingerprint`.
    """
    name = target.name if name is None else name
    watcher = make_watching(model=name, drafter=next(iter(drafters)), rule=rule)
    desk = Desk(
        target,
        drafters,
        rule=rule,
        rules=rules,
        draft_length=draft_length,
        max_batch=max_batch,
        max_queue=max_queue,
        slowdown=slowdown,
        watcher=watcher,
        engines=engines,
        trial=trial,
    )
    offer = Offer(
        desk.target,
        name,
        tuple(desk.drafters),
        tuple(desk.rules),
        limits or Limits(),
    )
    app = make_app(
        desk,
        text_routes(offer),
        queries(offer, int(time.time()), has_keys=keys is not None),
        keys=keys,
        bounds=bounds,
        fingerprint=Fingerprint(offer, draft_length, model_digest),
        cors_origins=cors_origins,
        hosts=hosts,
    )
    return app, desk
