"""Answers the requests of a text route, whole or streamed, and ends those whose client
disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from forerun.base.errors import LOG
from forerun.engine.results import Generation, Piece
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask, Reply, ScoredReply
from forerun.serve.admission.client_request import Ticket
from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.keys import Key
from forerun.serve.admission.scoring import LeftError, prompt_logprobs
from forerun.serve.http.models import Models, Served
from forerun.serve.http.requests import Bodies, Bounds
from forerun.serve.http.responses import (
    DONE,
    PING,
    EventStream,
    ReaderGoneError,
    disconnected,
    events,
    json_response,
    with_pauses,
)
from forerun.serve.http.worker import Worker, owner_of
from forerun.serve.openai.objects import parse_object


class Answering:
    """An ASGI application for one route; each request may name its model."""

    def __init__(
        self,
        path: str,
        models: Models,
        bounds: Bounds,
        bodies: Bodies,
        reading: Worker,
        wording: Worker,
        scoring: Worker,
    ) -> None:
        self._path = path
        self._models = models
        self._bounds = bounds
        self._bodies = bodies
        self._reading = reading
        self._wording = wording
        self._scoring = scoring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: Key = scope["state"]["key"]
        self._models.check_room(key.owner)  # before anything is spent on one that has to go
        async with AsyncExitStack() as stack:
            with key.quota.entering():
                name, read = await self._read(scope, receive)
                served = await stack.enter_async_context(self._models.using(name))
                ticket, reply = self._take_in(served, await read(served), scope)
            ask = ticket.ask
            ticket.when_ended(lambda answers: key.quota.leave(_num_tokens(ask, answers)))
            await self._answer(served, ticket, reply, (scope, receive, send))

    async def _answer(
        self, served: Served, ticket: Ticket, reply: Reply, client: tuple[Scope, Receive, Send]
    ) -> None:
        """Send the answers, whole or piece by piece. If the client disconnects, end the request."""
        scope, receive, send = client
        ask, owner = ticket.ask, owner_of(scope)
        async with _aborted_when_gone(ticket, receive) as gone:
            await ticket.submitted()
            await self._score(served.desk, ask, reply, gone, owner)
            if ask.is_streamed:
                ends_with_done = getattr(served.routes[self._path], "ends_with_done", True)
                await self._stream(ticket, reply, send, gone, ends_with_done)
                return
            answers = await ticket.results()
            if not gone.is_set():
                whole = await self._wording.run(lambda: json_response(reply.whole(answers)), owner)
                await whole(scope, receive, send)

    async def _read(
        self, scope: Scope, receive: Receive
    ) -> tuple[Any, Callable[[Served], Awaitable[Ask]]]:
        """Read the body. Returns the name of the request's model, and a function that makes the
        `Ask` once that model is loaded (if it is already loaded, this has been done with the
        body)."""
        owner, most = owner_of(scope), self._bounds.max_values
        body = await self._bodies.read(Request(scope, receive), owner)

        def work() -> tuple[dict[str, Any], Ask | None]:
            parsed = parse_object(body, most)
            served = self._models.find(parsed.get("model")).served
            return parsed, None if served is None else served.routes[self._path].read(parsed)

        parsed, ask = await self._reading.run(work, owner)

        async def read(served: Served) -> Ask:
            if ask is not None:
                return ask
            route = served.routes[self._path]
            return await self._reading.run(lambda: route.read(parsed), owner)

        return parsed.get("model"), read

    def _take_in(self, served: Served, ask: Ask, scope: Scope) -> tuple[Ticket, Reply]:
        """Submit a request to the desk. Returns its ticket and its reply."""
        route, state = served.routes[self._path], scope["state"]
        key: Key = state["key"]
        key.quota.check_priority(ask.options.priority)
        _check_alternatives(ask, self._bounds.max_alternatives)
        request_id: str = state["request_id"]
        reply = route.reply(ask, request_id, int(time.time()), served.fingerprint(ask))
        ticket = served.desk.enter(ask, key.owner, request_id=request_id)
        seconds = time.perf_counter() - state["arrival"]
        served.desk.watcher.received(request_id, self._path, key.label, seconds)
        state["is_received"] = True  # from here on its ticket tells the watcher
        return ticket, reply

    async def _score(
        self, desk: Desk, ask: Ask, reply: Reply, gone: asyncio.Event, owner: str
    ) -> None:
        """Compute log-probabilities of the prompts, if they are wanted."""
        if not ask.scores_prompts:
            return
        assert isinstance(reply, ScoredReply)
        num_top = ask.options.logprobs or 0

        def work() -> None:
            how = {"is_busy": lambda: desk.num_running > 0, "has_left": gone.is_set}
            reply.score([prompt_logprobs(desk.target, p, num_top, **how) for p in ask.prompts])

        with suppress(LeftError):
            await self._scoring.run(work, owner)

    async def _stream(
        self,
        ticket: Ticket,
        reply: Reply,
        send: Send,
        gone: asyncio.Event,
        ends_with_done: bool,
    ) -> None:
        """Send events as pieces arrive. If the request fails, the last event says so."""
        stream = EventStream(send, self._bounds.reader_seconds)
        try:
            await stream.start()
            await stream.send(events(reply.opening()))
            try:
                async for batch in with_pauses(ticket.batches(), self._bounds.ping_seconds):
                    if gone.is_set():
                        return
                    await _send_pieces(stream, reply, batch)
                await stream.send(events(reply.closing(await ticket.results())))
            except ApiError as error:
                await stream.send(events(_failure(reply, error)))
            if ends_with_done:
                await stream.send(DONE)
            await stream.end()
        except ReaderGoneError:
            LOG.warning("Request %s: its reader takes nothing in; dropped.", ticket.request_id)


@asynccontextmanager
async def _aborted_when_gone(ticket: Ticket, receive: Receive) -> AsyncIterator[asyncio.Event]:
    """Abort the request when its client disconnects, and in any case at the end of the block."""
    gone = asyncio.Event()

    async def listen() -> None:
        await disconnected(receive)
        gone.set()
        ticket.abort()

    listener = asyncio.create_task(listen())
    try:
        yield gone
    finally:
        listener.cancel()
        ticket.abort()


async def _send_pieces(
    stream: EventStream, reply: Reply, batch: Sequence[tuple[int, Piece]] | None
) -> None:
    """Send a batch of pieces as events. If one of them cannot be formatted, those before it are
    still sent."""
    if batch is None:
        await stream.send(PING)
        return
    told: list[Mapping[str, Any]] = []
    try:
        for choice, piece in batch:
            told.extend(reply.piece(choice, piece))
    finally:
        await stream.send(events(told))


def _failure(reply: Reply, error: ApiError) -> Sequence[Any]:
    """The events for an error in the middle of a stream, in the route's own format if it has
    one."""
    worded = getattr(reply, "failure", None)
    return [error.body()] if worded is None else worded(error)


def _check_alternatives(ask: Ask, most: int) -> None:
    """Refuse a request whose log-probabilities would need too much memory."""
    beside = ask.options.logprobs or 0
    longest = ask.options.max_new_tokens + (max(map(len, ask.prompts)) if ask.scores_prompts else 0)
    if ask.num_choices * longest * beside > most:
        message = (
            f"{ask.num_choices} answers of up to {longest} tokens with {beside} "
            f"log-probabilities beside each are more than the {most} that fit into a response. "
            "Ask for fewer new tokens, answers or log-probabilities."
        )
        raise ApiError(message, param="logprobs", code="invalid_value")


def _num_tokens(ask: Ask, answers: Sequence[Generation]) -> int:
    """How many tokens a request counts for its key: each prompt once, and every answer."""
    return sum(map(len, ask.prompts)) + sum(len(answer.tokens) for answer in answers)
