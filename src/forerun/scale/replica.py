"""One replica: a model with its engines, which writes answers for an ingress.

It keeps nothing of an answer that the ingress does not have, so it may die at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from forerun.engine.answer import Answer
from forerun.engine.async_engine import AsyncEngine
from forerun.engine.results import Piece
from forerun.errors import LOG, ForerunError, GenerationError, InputError
from forerun.scale.messages import (
    Ending,
    Growth,
    Message,
    Odometer,
    Refusal,
    Work,
)
from forerun.serve.engines import Engines
from forerun.serve.errors import ApiError
from forerun.serve.pool import Pair

FAILED = Refusal("The engine has failed.", status=503)


class Replica:
    """Writes answers.

    name: told in messages, so that a conversation comes back to where its beginning is stored.
    model_digest: of its model; work that another model has begun is not gone on with.
    """

    def __init__(self, name: str, engines: Engines, model_digest: str) -> None:
        self.name = name
        self._engines = engines
        self._model_digest = model_digest

    @property
    def is_sound(self) -> bool:
        return self._engines.is_sound

    async def answer(self, work: Work) -> AsyncIterator[Message | Refusal]:
        """The messages of one answer, which is aborted when nobody reads on."""
        if work.model_digest != self._model_digest:
            yield Refusal(
                f"Replica {self.name} would give other texts: its weights, versions or processor "
                "are not those of the replica that the ingress met first. Use equal machines.",
                status=409,
            )
            return
        try:
            engine = await self._engines.get(work.pair)
            answer = engine.submit(list(work.prompt), **work.options)
        except GenerationError:
            yield FAILED
            return
        except ApiError as error:
            yield Refusal(error.message, error.param, error.status)
            return
        except ForerunError as error:
            yield Refusal(str(error))
            return
        try:
            async for message in self._messages(answer, engine):
                yield message
        finally:
            answer.abort()
            if engine.failure is not None:
                self._engines.replace(work.pair, engine)

    async def warm_up(self, pair: Pair, prompt: Sequence[int]) -> None:
        """Answer once what nobody asked, so that what is made and compiled once is there."""
        options = {"max_new_tokens": 16, "ignore_eos": True}
        async for message in self.answer(Work(pair, prompt, options, self._model_digest)):
            if isinstance(message, Refusal):
                raise InputError(message.reason)

    async def close(self) -> None:
        await self._engines.close()

    async def _messages(
        self, answer: Answer, engine: AsyncEngine
    ) -> AsyncIterator[Message | Refusal]:
        odometer = Odometer(answer.stats)
        async for piece in _with_entry(answer):
            if piece is None:
                yield Message(None, Growth(), self.name)
            elif piece.finish_reason is None:
                yield Message(piece, odometer.growth(), self.name)
            elif piece.finish_reason == "error" and engine.failure is not None:
                yield FAILED
            else:
                yield await self._ending(answer, piece, odometer)

    async def _ending(self, answer: Answer, piece: Piece, odometer: Odometer) -> Ending:
        error = None
        try:
            last = await answer
        except GenerationError as failure:
            LOG.error("A request failed.", exc_info=failure)
            last, error = failure.results, str(failure)
        return Ending(
            piece,
            odometer.growth(),
            self.name,
            text=last.text,
            seed=last.seed,
            error=error,
            notes=tuple(last.stats.notes),
            compared=last.stats.compared,
        )


async def _with_entry(answer: Answer) -> AsyncIterator[Piece | None]:
    """The pieces of an answer, and None when it is given a row: long before, for a long prompt."""
    entered = asyncio.Event()
    answer.when_entered(entered.set)
    entry = asyncio.create_task(entered.wait())
    first = asyncio.ensure_future(anext(answer, None))
    try:
        await asyncio.wait({entry, first}, return_when=asyncio.FIRST_COMPLETED)
        if entered.is_set():
            yield None
        piece = await first
    finally:
        entry.cancel()
        first.cancel()
    while piece is not None:
        yield piece
        piece = None if piece.finish_reason is not None else await anext(answer, None)
