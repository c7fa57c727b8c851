"""The parts of the server that run on Ray Serve: replicas with the model, and the ingress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from forerun.scale.ingress import make_ingress
from forerun.scale.messages import Beat, Ending, Message, Refusal, ReplicaLostError, Work
from forerun.scale.ray_router import wish_of
from forerun.scale.replica import Replica
from forerun.scale.settings import ModelSettings, Scale
from forerun.serve.admission.admission import warm_up_prompt
from forerun.serve.admission.engines import Engines
from forerun.serve.openai.fingerprint import ModelCard, card_of
from forerun.serve.watching.logs import set_up

HEALTH_SECONDS = 1.0
"""Seconds between two health checks of a replica, and so the time until a dead one is replaced."""
HEALTH_PATIENCE = 5.0
"""Seconds for an answer to a check; Ray replaces a replica that has failed three in a row."""


class RayReplicas:
    """Sends work to replicas through a Ray Serve handle, one call per answer.

    Ray counts the open calls, scales the replicas by that number, and chooses the replica.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(
            method_name="answer",
            stream=True,
            _by_reference=False,  # over gRPC: half of what Ray's object store costs per message
            request_serialization="pickle",
            response_serialization="pickle",
        )

    async def answer(self, work: Work) -> AsyncIterator[Message | Refusal | Beat]:
        response = self._handle.options(session_id=wish_of(work)).remote(work)
        is_over = False
        try:
            async for message in response:
                is_over = isinstance(message, Ending | Refusal)
                yield message
        except Exception as error:  # Ray has a dozen for a process that is gone
            raise ReplicaLostError(f"{type(error).__name__}") from error
        finally:
            if not is_over:
                response.cancel()


class ModelReplica:
    """A replica as Ray Serve starts it: loads the model, answers a request to warm up, and is
    ready."""

    async def __init__(self, settings: ModelSettings) -> None:  # type: ignore[misc]
        set_up()
        target, drafters = settings.load()
        self._card = card_of(target)
        engines = Engines(
            target,
            drafters,
            draft_length=settings.draft_length,
            max_batch=settings.max_batch,
            slowdown=settings.slowdown,
            on_restart=lambda: None,
        )
        name = serve.get_replica_context().replica_id.unique_id
        self._replica = Replica(name, engines, self._card.digest)
        await self._replica.warm_up((settings.drafter_names[0], "match"), warm_up_prompt(target))

    async def answer(self, work: Work) -> AsyncIterator[Message | Refusal | Beat]:
        async for message in self._replica.answer(work):
            yield message

    def card(self) -> ModelCard:
        """The facts about the model that an ingress needs."""
        return self._card

    def check_health(self) -> None:
        """Called by Ray, which replaces a replica if this raises repeatedly."""
        if not self._replica.is_sound:
            raise RuntimeError("An engine has failed and cannot be replaced.")


class Ingress:
    """The ingress as Ray Serve starts it, behind Ray's own HTTP proxies."""

    async def __init__(  # type: ignore[misc]
        self, handle: Any, settings: ModelSettings, scale: Scale, options: Mapping[str, Any]
    ) -> None:
        set_up()
        card = await handle.card.remote()
        self._app, self._desk = make_ingress(RayReplicas(handle), card, settings, scale, **options)

    def __serve_build_asgi_app__(self) -> Any:
        return self._app


def model_replicas(settings: ModelSettings, scale: Scale) -> Any:
    """A Ray Serve application with only the replicas."""
    number: dict[str, Any] = {"num_replicas": scale.least}
    if scale.most > scale.least:
        number = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scale.least,
                max_replicas=scale.most,
                target_ongoing_requests=settings.max_batch,
            )
        }
    return serve.deployment(
        ModelReplica,
        name="ModelReplica",
        max_ongoing_requests=2 * settings.max_batch,  # the next ones wait where rows get free
        ray_actor_options={"num_cpus": scale.num_cpus, "num_gpus": scale.num_gpus},
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=HEALTH_PATIENCE,
        graceful_shutdown_timeout_s=HEALTH_PATIENCE,  # one that hangs does not end by itself
        request_router_config=RequestRouterConfig(
            request_router_class="forerun.scale.ray_router.HomeRouter"
        ),
        **number,
    ).bind(settings)


def ingress_over(
    replicas: Any,
    settings: ModelSettings,
    scale: Scale,
    num_ingresses: int,
    options: Mapping[str, Any],
) -> Any:
    """A Ray Serve application with the ingress and the replicas."""
    return serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        num_replicas=num_ingresses,
        max_ongoing_requests=1_000_000,  # its desk refuses what is too much
        ray_actor_options={"num_cpus": 0},
    ).bind(replicas, settings, scale, dict(options))
