"""The server without a model: OpenAI's routes over a fleet of replicas."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette

from forerun.scale.blame import Blame
from forerun.scale.failover import Replicas
from forerun.scale.fleet import Fleet
from forerun.scale.settings import ModelSettings, Scale
from forerun.serve.admission.admission import Desk
from forerun.serve.http.assembly import make_server
from forerun.serve.openai.fingerprint import ModelCard


def make_ingress(
    replicas: Replicas, card: ModelCard, settings: ModelSettings, scale: Scale, **options: Any
) -> tuple[Starlette, Desk]:
    """The application and its desk; options as for `make_server`.

    There is a place for as many answers as all replicas write at once when there are most of them,
    and for `max_queue` that wait; a request beyond these gets 429.
    """
    fleet = Fleet(replicas, tokenizer=card.tokenizer, model_digest=card.digest)
    app, desk = make_server(
        card,
        dict.fromkeys(settings.drafter_names),
        draft_length=settings.draft_length,
        max_batch=scale.most * settings.max_batch,
        engines=fleet,
        trial=Blame(),
        model_digest=card.digest,
        **options,
    )
    fleet.on_loss = desk.watcher.engine_restarted
    return app, desk
