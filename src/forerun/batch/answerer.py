"""Answers the requests of a batch job with one model, using the server's routes and desk without
HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from forerun.base.errors import LOG
from forerun.batch.batch_routes import check_whole, routed
from forerun.batch.lines import BatchRequest, OutputLine, answered, refused, request_id_of
from forerun.drafters.base import Drafter
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.results import Generation
from forerun.generation.choosing import drafter_for, make_drafter
from forerun.loading.default import default_model
from forerun.loading.load import load
from forerun.rules.types import DraftLength
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fingerprint import Fingerprint
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.routes import text_routes

PAUSES = (1.0, 5.0, 25.0)
"""Seconds to wait before a request is tried again because its engine was being replaced."""


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a worker, as plain values that can be sent to another process.

    model: hub name or folder; None for the default model.
    name: the model's id, which requests may contain.
    is_raw: bare prompts are continued as they are, without a chat template.
    created: when the job began, in seconds since 1970.
    """

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    lean: bool = True  # take our CPU pass where it fits
    quantize: Any = None
    gpu_memory: str | None = None
    kv_dtype: Any = None
    drafter: str = "none"
    draft_length: DraftLength = "auto"
    max_batch: int = 8
    name: str | None = None
    is_raw: bool = False
    created: int = 0


@dataclass(frozen=True)
class AnswerCounts:
    """The tokens and rounds of an answer, over all its choices."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: AnswerCounts) -> AnswerCounts:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return AnswerCounts(*(one + two for one, two in pairs))


@dataclass(frozen=True)
class Answered:
    """The output line of a request, and its token counts."""

    index: int
    line: OutputLine
    counts: AnswerCounts = AnswerCounts()


class Answerer:
    """Answers requests, up to `max_batch` choices in one pass.

    It offers only the rule `match`, so that texts do not depend on the drafter, the batch or the
    number of workers.
    """

    def __init__(self, target: Any, settings: WorkerSettings, drafters: Mapping[str, Any]) -> None:
        self._settings = settings
        self._desk = Desk(
            target,
            drafters,
            rules=["match"],
            draft_length=settings.draft_length,
            max_batch=settings.max_batch,
            max_queue=sys.maxsize,  # whoever sends requests bounds how many are on their way
        )
        self._entries = count()
        self._running: dict[int, list[list[int]]] = {}  # tokens of each answer, by index
        name = settings.name or target.name
        self._offer = Offer(self._desk.target, name, tuple(drafters), ("match",))
        self._routes = {route.path: route for route in text_routes(self._offer)}
        self._fingerprint = Fingerprint(self._offer, settings.draft_length)

    @classmethod
    def load(cls, settings: WorkerSettings) -> Answerer:
        """Load the model and the drafter that the settings name."""
        device, dtype = settings.device, settings.dtype
        lean: Any = "auto" if settings.lean else False

        def model(name: str | None, **options: Any) -> Any:
            if name is None:
                return default_model(device, dtype, **options)
            return load(name, device, dtype, **options)

        target = model(
            settings.model,
            lean=lean,
            quantize=settings.quantize,
            gpu_memory=settings.gpu_memory,
            kv_dtype=settings.kv_dtype,
        )
        name = settings.drafter
        drafters: dict[str, Drafter | None] = {
            name: drafter_for(target, name) if name == "auto" else make_drafter(name, model)
        }
        drafters.setdefault("none", None)
        return cls(target, settings, drafters)

    @property
    def fingerprint(self) -> str:
        """A string that is equal for workers that give the same texts."""
        return self._fingerprint(Ask([], AnswerOptions()))

    async def warm_up(self) -> None:
        """Compile all code that is compiled once; raises if the model cannot answer at all."""
        await self._desk.warm_up()

    async def answer(self, request: BatchRequest) -> Answered:
        """The output line of a request; if it cannot be answered, a line with the error."""
        try:
            for pause in PAUSES:
                try:
                    return await self._answer(request)
                except ApiError as error:
                    if error.status != 503:
                        raise
                await asyncio.sleep(pause)
            return await self._answer(request)
        except ApiError as error:
            return Answered(request.index, refused(request, error))
        except Exception as error:  # the other lines go on
            LOG.exception("Line %d failed.", request.number)
            message = f"The line failed ({type(error).__name__}: {error})."
            told = ApiError(message, status=500, kind="server_error", code="generation_failed")
            return Answered(request.index, refused(request, told))

    async def _answer(self, request: BatchRequest) -> Answered:
        """The output line of a request: a route reads its body, the desk answers it, and the route
        formats the answer. Raises an `ApiError` if any of this fails."""
        has_template = getattr(self._offer.tokenizer, "chat_template", None) is not None
        url, body = routed(request, is_chat=has_template and not self._settings.is_raw)
        route = self._routes[url]
        ask = route.read(body)
        check_whole(is_streamed=ask.is_streamed)
        name = request_id_of(request)
        reply = route.reply(ask, name, self._settings.created, self._fingerprint(ask))
        answers = await self._written(request, ask)
        stats = [answer.stats for answer in answers]
        counts = AnswerCounts(
            prompt_tokens=sum(map(len, ask.prompts)),
            new_tokens=sum(len(answer.tokens) for answer in answers),
            rounds=sum(one.rounds for one in stats),
            drafted=sum(one.drafted for one in stats),
            accepted=sum(one.accepted for one in stats),
        )
        return Answered(request.index, answered(request, reply.whole(answers)), counts)

    async def _written(self, request: BatchRequest, ask: Ask) -> list[Generation]:
        """The answers of a request; their tokens are recorded as they come."""
        begun = request.begun if len(request.begun) == ask.num_choices else ()
        tokens = [list(begun[choice]) if begun else [] for choice in range(ask.num_choices)]
        ticket = self._desk.enter(ask, request_id=f"{next(self._entries)}", begun=begun)
        if ask.options.logprobs is None:  # else they would be missing for the tokens so far
            self._running[request.index] = tokens
        try:
            async for choice, piece in ticket:
                tokens[choice] += piece.tokens
            return await ticket.results()
        finally:
            self._running.pop(request.index, None)

    def begun(self) -> dict[int, list[list[int]]]:
        """The tokens of unfinished answers, by index of the request.

        The last token of each is left out, so that an answer that was about to end can be resumed
        before its end.
        """
        kept = {index: [one[:-1] for one in all_] for index, all_ in self._running.items()}
        return {index: rows for index, rows in kept.items() if any(rows)}

    async def close(self) -> None:
        """Close the desk and its engines."""
        await self._desk.close()
