"""All replicas together, as the engines of one desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from forerun.base.clock import now
from forerun.engine.request import Request
from forerun.scale.conversations import Conversations
from forerun.scale.failover import RemoteAnswer, RemoteEngine, Replicas
from forerun.scale.messages import Work
from forerun.serve.admission.engine_roles import Pair

PAUSE = 0.2
"""Seconds before work is sent again, where it is lost before it is begun."""

AVOIDED = 60.0
"""Seconds for which a replica that was lost gets no work, where there is another."""


class Fleet:
    """Sends every answer to a replica, and again to another one if that is lost.

    tokenizer, model_digest: those of all replicas.
    """

    def __init__(self, replicas: Replicas, *, tokenizer: Any, model_digest: str) -> None:
        self.on_loss: Callable[[], None] = lambda: None  # called for every answer that moves on
        self._replicas = replicas
        self._tokenizer = tokenizer
        self._model_digest = model_digest
        self._conversations = Conversations()
        self._answers: set[RemoteAnswer] = set()
        self._lost: dict[str, float] = {}  # replicas, and when their last loss was
        self._is_sound = True  # the last work that was sent was begun

    @property
    def is_sound(self) -> bool:
        """Whether a replica can be reached, as far as is known."""
        return self._is_sound

    @property
    def num_running(self) -> int:
        return sum(answer.is_running for answer in self._answers)

    async def get(self, pair: Pair) -> RemoteEngine:
        """Any replica, which is chosen when a request enters."""
        if not self._is_sound:
            await asyncio.sleep(PAUSE)
        return RemoteEngine(partial(self._start, pair))

    @asynccontextmanager
    async def alone(self, pair: Pair) -> AsyncIterator[RemoteEngine]:
        yield await self.get(pair)

    def replace(self, pair: Pair, dead: RemoteEngine) -> None:
        """A replica was lost: whoever started it starts another one."""
        self.on_loss()

    async def close(self) -> None:
        for answer in list(self._answers):
            answer.abort()

    def _start(self, pair: Pair, engine: RemoteEngine, request: Request) -> RemoteAnswer:
        """Send a request's work to a replica: to the one that stores its beginning, unless it was
        lost lately."""
        owner, prompt = request.owner, request.prompt
        home, avoid = self._conversations.find(owner, prompt), self._avoided()
        home = "" if home in avoid else home
        left = None if request.deadline is None else max(request.deadline - now(), 1e-9)
        options = replace(request.options, timeout=left)
        work = Work(pair, prompt, options, request.given, self._model_digest, home, avoid)
        answer = RemoteAnswer(engine, work, self._replicas.answer(work), self._tokenizer)
        self._answers.add(answer)

        def ended() -> None:
            self._answers.discard(answer)
            if answer.replica and engine.failure is not None:
                self._lost[answer.replica] = now()
            elif answer.replica:
                self._lost.pop(answer.replica, None)
                self._conversations.note(owner, prompt, answer.tokens, answer.replica)
            if answer.has_entered or engine.failure is not None:
                self._is_sound = answer.has_entered

        answer.when_ended(ended)
        return answer

    def _avoided(self) -> tuple[str, ...]:
        """Replicas that were lost lately: whoever started them may not have noticed yet."""
        self._lost = {name: at for name, at in self._lost.items() if now() - at < AVOIDED}
        return tuple(self._lost)
