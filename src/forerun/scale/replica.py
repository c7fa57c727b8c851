"""A replica: a model with its engines, which generates answers for an ingress.

It keeps nothing of an answer that the ingress does not have too, so it may die at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from forerun.base.errors import LOG, ForerunError, GenerationError, InputError
from forerun.engine.results import Piece
from forerun.generation.answer import Answer
from forerun.generation.async_engine import AsyncEngine
from forerun.generation.intake import make_request
from forerun.scale.messages import (
    Beat,
    Ending,
    Growth,
    Message,
    Odometer,
    Refusal,
    Work,
)
from forerun.serve.admission.admission import WARM_UP
from forerun.serve.admission.engine_roles import Pair
from forerun.serve.admission.engines import Engines
from forerun.serve.admission.errors import ApiError

MESSAGE_SECONDS = 0.002
"""The shortest time between two messages of a replica. A message takes 0.3 ms of its interpreter,
so 500 a second take a sixth of a core."""

BEAT_SECONDS = 1.0
"""Seconds without any other message after which a replica sends a sign of life; see
`failover.PATIENCE`."""

FAILED = Refusal("The engine has failed.", status=503)


class Replica:
    """A model with its engines, which generates answers for an ingress.

    name: included in messages, so that a conversation can return to the replica that stores its
    beginning.
    model_digest: of its model; answers begun by another model are not continued.
    message_seconds: the time between two messages, over all answers; pieces that come meanwhile are
    sent together. 0 sends every piece at once.
    """

    def __init__(
        self,
        name: str,
        engines: Engines,
        model_digest: str,
        message_seconds: float = MESSAGE_SECONDS,
    ) -> None:
        self.name = name
        self._message_seconds = message_seconds
        self._num_open = 0  # answers
        self._engines = engines
        self._model_digest = model_digest

    @property
    def is_sound(self) -> bool:
        return self._engines.is_sound

    async def answer(self, work: Work) -> AsyncIterator[Message | Refusal | Beat]:
        """The messages of one answer, which is aborted when nobody reads them. A `Beat` comes at
        once, and after each pause without messages."""
        messages, number = self._answer(work), 0
        step: asyncio.Future[Message | Refusal] | None = None
        try:
            yield Beat()
            while True:
                step = step or asyncio.ensure_future(anext(messages))
                await asyncio.wait([step], timeout=BEAT_SECONDS)
                if not step.done():
                    yield Beat()
                    continue
                try:
                    message = step.result()
                except StopAsyncIteration:
                    return
                step = None
                if isinstance(message, Message):
                    message, number = replace(message, number=number), number + 1
                yield message
        finally:
            if step is not None:
                step.cancel()
                await asyncio.wait([step])
            await messages.aclose()

    async def _answer(self, work: Work) -> AsyncGenerator[Message | Refusal]:
        """The messages of one answer, or a `Refusal` that says whether another replica could serve
        it."""
        if work.model_digest != self._model_digest:
            yield Refusal(
                f"Replica {self.name} would give other texts: its weights, versions or processor "
                "are not those of the replica that the ingress met first. Use equal machines.",
                status=409,
            )
            return
        try:
            engine = await self._engines.get(work.pair)
            how = work.options
            request = make_request(engine.target, work.prompt, how, given=work.given)
            answer = engine.enqueue(request)
        except GenerationError:
            yield FAILED
            return
        except ApiError as error:
            yield Refusal(error.message, error.param, error.status)
            return
        except ForerunError as error:
            yield Refusal(str(error))
            return
        self._num_open += 1
        try:
            async for message in self._messages(answer, engine):
                yield message
        finally:
            self._num_open -= 1
            answer.abort()
            if engine.failure is not None:
                self._engines.replace(work.pair, engine)

    async def warm_up(self, pair: Pair, prompt: Sequence[int]) -> None:
        """Answer a request, so that engines are made and code is compiled."""
        async for message in self.answer(Work(pair, prompt, WARM_UP, (), self._model_digest)):
            if isinstance(message, Refusal):
                raise InputError(message.reason)

    async def close(self) -> None:
        await self._engines.close()

    async def _messages(
        self, answer: Answer, engine: AsyncEngine
    ) -> AsyncIterator[Message | Refusal]:
        """The pieces of an answer as messages; several share one if they come faster than messages
        may be sent."""
        odometer = Odometer(answer.stats)
        if await _entered(answer):
            yield Message((), Growth(), self.name)
        async for first in answer:
            pieces = [first, *(answer.take_ready() if self._message_seconds else ())]
            reason = pieces[-1].finish_reason
            if reason == "error" and engine.failure is not None:
                yield Message(pieces[:-1], odometer.growth(), self.name)
                yield FAILED
                return
            if reason is not None:
                yield await self._ending(answer, pieces, odometer)
                return
            yield Message(pieces, odometer.growth(), self.name)
            await asyncio.sleep(self._num_open * self._message_seconds)

    async def _ending(self, answer: Answer, pieces: list[Piece], odometer: Odometer) -> Ending:
        """The last message, with the text, the seed, and the error if the request failed."""
        error = None
        try:
            last = await answer
        except GenerationError as failure:
            LOG.error("A request failed.", exc_info=failure)
            last, error = failure.results, str(failure)
        return Ending(
            pieces,
            odometer.growth(),
            self.name,
            text=last.text,
            seed=last.seed,
            error=error,
            notes=tuple(last.stats.notes),
            compared=last.stats.compared,
        )


async def _entered(answer: Answer) -> bool:
    """Wait until an answer gets a row. Returns False if it ends without one."""
    entered = asyncio.Event()
    answer.when_entered(entered.set)
    entry = asyncio.create_task(entered.wait())
    try:
        either: set[asyncio.Future[Any]] = {entry, answer.end}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        entry.cancel()
    return entered.is_set()
