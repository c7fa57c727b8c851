"""Fleets for tests: replicas in this process that die when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from serving import Answered, call

from forerun.drafters import NGram, Suffix
from forerun.scale.ingress import make_ingress
from forerun.scale.messages import Beat, Ending, Message, Refusal, ReplicaLostError, Work
from forerun.scale.replica import Replica
from forerun.scale.settings import ModelSettings, Scale
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.engines import Engines
from forerun.serve.openai.fingerprint import ModelCard
from forerun.serve.openai.offer import defaults_of

DIGEST = "the same in all replicas"
SETTINGS = ModelSettings(drafters=("ngram", "suffix"))


class Mortals:
    """Replicas that take turns; each call is one of them until its death.

    deaths: for each call in turn, how many messages arrive before its replica is gone; calls
    beyond these live.
    """

    def __init__(self, *targets: Any, digests: tuple[str, ...] = ()) -> None:
        self.deaths: list[int] = []
        self.works: list[Work] = []
        self.num_messages = self.num_deaths = 0  # of all calls
        digests = digests or (DIGEST,) * len(targets)
        self.replicas = [
            Replica(
                f"replica {number}",
                Engines(
                    target,
                    {"ngram": NGram(), "suffix": Suffix(), "none": None},
                    draft_length="auto",
                    max_batch=4,
                    on_restart=lambda: None,
                ),
                digest,
                message_seconds=0.0,
            )
            for number, (target, digest) in enumerate(zip(targets, digests, strict=True))
        ]

    async def answer(self, work: Work) -> AsyncIterator[Message | Refusal | Beat]:
        replica = self.replicas[len(self.works) % len(self.replicas)]
        self.works.append(work)
        left = self.deaths.pop(0) if self.deaths else -1
        messages = replica.answer(work)
        try:
            while left:
                message = await anext(messages)
                if isinstance(message, Beat):
                    yield message
                    continue
                left -= 1
                self.num_messages += 1
                yield message
                if isinstance(message, Ending | Refusal):
                    return
            self.num_deaths += 1
            raise ReplicaLostError("killed")
        finally:
            await messages.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self.replicas))


def card_of(target: Any) -> ModelCard:
    name, size, context = target.name, target.vocab_size, target.max_context
    return ModelCard(name, size, context, target.tokenizer, defaults_of(target), DIGEST)


class Asking:
    """An ingress to ask, and its replicas."""

    def __init__(self, app: Any, desk: Desk, replicas: Mortals) -> None:
        self.app, self.desk, self.replicas = app, desk, replicas

    async def __call__(
        self, path: str, body: Mapping[str, Any], deaths: Iterable[int] = (), **how: Any
    ) -> Answered:
        self.replicas.deaths = list(deaths)
        self.replicas.works.clear()
        self.replicas.num_messages = self.replicas.num_deaths = 0
        return await call(self.app, path, body, **how)


@asynccontextmanager
async def fleet(
    *targets: Any, digests: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Asking]:
    """An ingress over replicas of these models."""
    replicas = Mortals(*targets, digests=digests)
    scale = Scale(len(targets), len(targets))
    app, desk = make_ingress(replicas, card_of(targets[0]), SETTINGS, scale, **options)
    async with app.router.lifespan_context(app):
        yield Asking(app, desk, replicas)
    assert not desk.tickets
    await replicas.close()


def merged(events: list[Any]) -> dict[str, Any]:
    """A stream of chat or text chunks, without how it was cut into them and how it was drafted."""
    choices: dict[int, dict[str, Any]] = {}
    counts = None
    for event in events[:-1]:
        counts = event.get("usage") or counts
        for told in event["choices"]:
            choice = choices.setdefault(
                told["index"], {"text": "", "calls": [], "logprobs": [], "finish": None, "num": 0}
            )
            delta = told.get("delta", {})
            choice["text"] += told.get("text") or delta.get("content") or ""
            choice["calls"] += delta.get("tool_calls", [])
            if logprobs := told.get("logprobs"):
                choice["logprobs"] += logprobs.get("content") or _rows(logprobs)
            assert choice["finish"] is None
            choice["finish"] = told["finish_reason"]
            choice["num"] += len(told.get("token_ids", ()))
    if counts is not None:
        counts = {name: value for name, value in counts.items() if name != "speculation"}
    return {"choices": choices, "usage": counts, "last": events[-1]}


def _rows(logprobs: Mapping[str, Any]) -> list[Any]:
    """The log-probabilities of text chunks, token by token."""
    return [list(row) for row in zip(*logprobs.values(), strict=True)]


def masked(body: dict[str, Any]) -> dict[str, Any]:
    """A whole answer without when it was made and how it was drafted."""
    usage = {name: value for name, value in body["usage"].items() if name != "speculation"}
    choices = [
        {name: value for name, value in choice.items() if name not in ("fates", "tokens")}
        for choice in body["choices"]
    ]
    return {**body, "created": 0, "usage": usage, "choices": choices}
