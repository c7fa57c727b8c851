"""The models of a server: each is loaded on its first request, within a limit on their memory.

    async with models.using("small") as served: ...

A model is loaded once, however many requests wait for it, in a thread of its own, while other
models keep answering. If it does not fit beside the loaded models, the least recently used idle one
is unloaded first.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from forerun.base.errors import LOG, ForerunError
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask, Route
from forerun.serve.admission.errors import ApiError
from forerun.serve.http.responses import json_response
from forerun.serve.http.worker import Worker
from forerun.serve.openai.fields import safe
from forerun.serve.openai.routes import Query
from forerun.serve.watching.logs import say
from forerun.serve.watching.roles import Watcher

GIB = 2**30
MOST_WAITING = 64
"""The most requests that may wait for a model to be loaded; more get status 429."""

LONGEST_LOAD = 3600.0
"""The most seconds that loading a model may take, including waiting and downloading."""

WARM_UP = "warm-up"
MESSAGES = [{"role": "user", "content": "Hello!"}]

ANSWERED: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {"prompt": "Hello!", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "Hello!", "max_output_tokens": 16},
}
"""Request bodies, by path, that the server answers by itself when it starts. They load everything
that is loaded on first use, such as compiled code and the grammar library, so that no client waits
for it."""

READ: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "response_format": {"type": "json_object"}},
}
"""Request bodies that are only read at the start and not answered, because compiling their grammar
takes the time."""


@dataclass
class Served:
    """A loaded model, with the desk and the routes that answer for it.

    card: its entry in /v1/models.
    """

    desk: Desk
    routes: Mapping[str, Route]  # by path
    queries: Mapping[str, Query] = field(default_factory=dict)
    fingerprint: Callable[[Ask], str] = lambda ask: ""
    card: Mapping[str, Any] = field(default_factory=dict)

    async def warm_up(self) -> None:
        """Answer some requests of the server's own: one at the desk, and one on every route.

        Routes that the model cannot serve are skipped, such as chats without a chat template.
        """
        await self.desk.warm_up()
        for route in self.routes.values():
            for bodies, is_answered in ((ANSWERED, True), (READ, False)):
                if route.path in bodies:
                    with suppress(ApiError, ForerunError):
                        ask = await asyncio.to_thread(route.read, bodies[route.path])
                        if is_answered:
                            await self._rehearse(route, ask)

    async def _rehearse(self, route: Route, ask: Ask) -> None:
        """Answer one request and format its reply."""
        reply = route.reply(ask, WARM_UP, 0, self.fingerprint(ask))
        answers = await self.desk.enter(ask, owner=WARM_UP, request_id=WARM_UP).results()
        await asyncio.to_thread(lambda: json_response(reply.whole(answers)))


@dataclass(eq=False)
class Model:
    """A model that a server can load.

    names: its id, and other names for it.
    load: loads it, in a thread; None if this server does not load it.
    num_bytes: its memory, as stated or estimated. After loading, the growth of the process's memory
    if that was more.
    """

    names: Sequence[str]
    load: Callable[[], Served] | None = None
    num_bytes: int = 0
    watcher: Watcher = field(default_factory=Watcher)
    served: Served | None = None
    loading: asyncio.Task[Served] | None = None
    is_in_thread: bool = False  # a thread loads it, which may have been given up
    has_room: bool = False  # its bytes are taken
    num_users: int = 0  # requests that are read or answered by it, or wait for it
    last_use: int = 0  # a number that grows with each request

    @property
    def is_held(self) -> bool:
        """Whether the model must stay loaded, because some of its answers are not complete."""
        return self.num_users > 0 or (self.served is not None and self.served.desk.num_open > 0)


class Models:
    """All models of a server. The first one is the default, for requests that name none.

    most_bytes: a limit on the memory of all loaded models together; None for no limit.
    """

    def __init__(self, models: Sequence[Model], most_bytes: int | None = None) -> None:
        self._models = list(models)
        self._by_name = {name: model for model in models for name in model.names}
        for model in models:
            model.has_room = model.served is not None
        self._most_bytes = most_bytes
        self._created = int(time.time())
        self._is_draining = False
        self._num_uses = 0
        self._changing = asyncio.Lock()  # held while room is made
        self._loading = Worker("forerun-loading", LONGEST_LOAD)  # which no exit waits for

    @property
    def default(self) -> Model:
        """The model for requests that name none."""
        return self._models[0]

    @property
    def desks(self) -> list[Desk]:
        """The desks of the models that are loaded."""
        return [model.served.desk for model in self._models if model.served is not None]

    @property
    def is_ready(self) -> bool:
        """Whether all loaded models can answer requests."""
        return not self._is_draining and all(desk.is_ready for desk in self.desks)

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the server is about to end."""
        return self._is_draining or any(desk.is_draining for desk in self.desks)

    @property
    def num_requests(self) -> int:
        """The number of requests that have not ended."""
        return sum(len(desk.tickets) for desk in self.desks)

    def __contains__(self, request_id: object) -> bool:
        """Whether a request with this id is running."""
        return any(request_id in desk.tickets for desk in self.desks)

    def cards(self) -> list[dict[str, Any]]:
        """The entries of /v1/models, one for each name; `root` is the model's id."""
        return [
            {**self._card(model), "id": name, "root": model.names[0]}
            for model in self._models
            for name in model.names
        ]

    def card(self, name: str) -> dict[str, Any]:
        """The entry of one model in /v1/models, under one of its names."""
        model = self._named(name)
        return {**self._card(model), "id": name, "root": model.names[0]}

    def _card(self, model: Model) -> dict[str, Any]:
        """The part of a model's entry in /v1/models that does not depend on the name."""
        told: Mapping[str, Any] = {} if model.served is None else model.served.card
        return {
            "object": "model",
            "created": self._created,
            "owned_by": "forerun",
            "max_model_len": None,
            "loaded": model.served is not None,
            **told,
        }

    def summary(self) -> dict[str, Any]:
        """The rates of the last seconds, for all models together and for each of them."""
        parts = {model.names[0]: model.watcher.summary() for model in self._models}
        if len(parts) == 1:
            return dict(self.default.watcher.summary())
        counts = ("running", "waiting", "batch_rows")
        sums = {name: sum(part.get(name, 0) for part in parts.values()) for name in counts}
        alarms = [part.get("acceptance_alarm") for part in parts.values()]
        alarm = next(filter(None, alarms), None)
        totals = self.default.watcher.totals()
        return {**totals, **sums, "acceptance_alarm": alarm, "models": parts}

    def check_room(self, owner: str) -> None:
        """Refuse a request before it is read, if there is certainly no place for it."""
        if self._is_draining or len(self._models) == 1:
            for desk in self.desks:
                desk.check_room(owner=owner)

    @asynccontextmanager
    async def using(self, name: Any = None) -> AsyncIterator[Served]:
        """The model that a request names, loaded and kept loaded during the block. name: see
        `find`."""
        model = self.find(name)
        if model.served is None and model.num_users >= MOST_WAITING:
            message = f"Too many requests wait for the model '{model.names[0]}' to be loaded."
            kind, code = "rate_limit_error", "queue_full"
            raise ApiError(message, status=429, kind=kind, code=code, retry_after=10.0)
        self._num_uses += 1
        model.last_use = self._num_uses
        model.num_users += 1
        try:
            yield model.served or await self._loaded(model)
        finally:
            model.num_users -= 1

    def watch(self) -> None:
        """Connect the metrics of each loaded model to its desk."""
        for model in self._models:
            if model.served is not None:
                model.watcher.watch(model.served.desk)

    def find(self, name: Any) -> Model:
        """The model that a request names; the default for a name that is not a string, whose route
        then reports the error."""
        return self._named(name) if isinstance(name, str) else self.default

    async def warm_up(self) -> None:
        """Warm up the models that are loaded already."""
        for model in self._models:
            if model.served is not None:
                await model.served.warm_up()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait for the running ones; see `Desk.drain`."""
        self._is_draining = True
        loading = [model.loading for model in self._models if model.loading is not None]
        for task in loading:
            task.cancel()
        if loading:
            await asyncio.wait(loading)
        await asyncio.gather(*(desk.drain(seconds) for desk in self.desks))

    async def close(self) -> None:
        """End all requests and engines at once."""
        await self.drain(0)
        await asyncio.gather(*(desk.close() for desk in self.desks))

    def _named(self, name: str) -> Model:
        """The model with this name; raises an `ApiError` 404 that lists the existing names."""
        if name not in self._by_name:
            listed = " or ".join(f"'{known}'" for known in self._by_name)
            message = f"The model '{safe(name)}' does not exist here. Use {listed}."
            raise ApiError(message, status=404, param="model", code="model_not_found")
        return self._by_name[name]

    async def _loaded(self, model: Model) -> Served:
        """The model, loaded if necessary. Several requests for the same model share one load."""
        if self._is_draining:
            raise _not_loaded(model, "the server is shutting down")
        if model.loading is None and model.is_in_thread:
            raise _not_loaded(model, "the last attempt took too long and has not ended yet")
        if model.loading is None:
            model.loading = asyncio.create_task(self._load(model))
            model.loading.add_done_callback(lambda task: self._load_ended(model, task))
        try:
            return await asyncio.shield(model.loading)
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise _not_loaded(model, "the server is shutting down") from None

    def _load_ended(self, model: Model, task: asyncio.Task[Served]) -> None:
        """Clean up after a load that succeeded, failed or was given up."""
        model.loading = None
        if not task.cancelled():
            task.exception()  # which whoever waited was told
        self._give_back(model)

    def _give_back(self, model: Model) -> None:
        """Release the memory reserved for a model, if it is neither loaded nor being loaded."""
        if model.served is None and model.loading is None and not model.is_in_thread:
            model.has_room = False

    def _load_here(self, model: Model, loop: asyncio.AbstractEventLoop) -> Served:
        """Load a model in the present thread, and tell the event loop at the end."""
        assert model.load is not None

        def end() -> None:
            model.is_in_thread = False
            self._give_back(model)

        model.is_in_thread = True
        try:
            return model.load()
        finally:
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(end)

    async def _load(self, model: Model) -> Served:
        """Make room, load in a thread, and warm up. If that fails, clients get an error without its
        details."""
        async with self._changing:
            await self._make_room(model)
            model.has_room = True
        name, before = model.names[0], memory_in_use()
        say("loading", model=name)
        try:
            work = partial(self._load_here, model, asyncio.get_running_loop())
            served = await self._loading.run(work, name)
            try:
                await served.warm_up()
            except BaseException:  # its engines would hold its weights
                await served.desk.close()
                raise
        except Exception as error:
            told = str(error) if isinstance(error, ForerunError) else None
            LOG.error("The model %s could not be loaded. %s", name, told or "", exc_info=error)
            raise _not_loaded(model, "it could not be loaded, as the server's log says") from error
        model.served = served
        self._weigh(model, memory_in_use() - before)
        model.watcher.watch(served.desk)
        say("loaded", model=name)
        return served

    def _weigh(self, model: Model, grown: int) -> None:
        """Correct the estimate of a model's memory by how much the process grew while it was
        loaded. Other models were answering meanwhile, so the estimate never becomes so large that
        the model could not be loaded again."""
        most = grown if self._most_bytes is None else min(grown, self._most_bytes)
        if most > model.num_bytes:
            expected, gib = round(model.num_bytes / GIB, 2), round(grown / GIB, 2)
            say("larger than expected", model=model.names[0], gib=gib, expected_gib=expected)
            model.num_bytes = most

    async def _make_room(self, model: Model) -> None:
        """Unload models until this one fits; raises an error that says how much is missing."""
        most = self._most_bytes
        if most is None:
            return
        if model.num_bytes > most:
            raise _too_large(model, most)
        while (missing := self._num_bytes_but(model) + model.num_bytes - most) > 0:
            idle = [one for one in self._models if one.served is not None and not one.is_held]
            missing -= sum(other.num_bytes for other in idle)
            if missing > 0:
                raise _no_room(model, most, missing)
            # One at a time: while it goes, a request may come for another.
            await self._unload(min(idle, key=lambda other: other.last_use))

    def _num_bytes_but(self, model: Model) -> int:
        """The memory of all other models that are loaded or being loaded."""
        others = (other for other in self._models if other is not model)
        return sum(one.num_bytes for one in others if one.has_room)

    async def _unload(self, model: Model) -> None:
        """Close a model's engines and free its weights."""
        served, model.served = model.served, None
        assert served is not None
        say("unloading", model=model.names[0])
        model.watcher.watch(None)
        try:
            await served.desk.close()
        except Exception as error:
            LOG.error("The model %s did not end as it should.", model.names[0], exc_info=error)
        finally:
            model.has_room = False
        del served
        gc.collect()


def memory_in_use() -> int:
    """The bytes of this process that are in memory; 0 if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def one_model(
    desk: Desk,
    routes: Sequence[Route],
    queries: Sequence[Query] = (),
    fingerprint: Callable[[Ask], str] = lambda ask: "",
    names: Sequence[str] = ("model",),
    card: Mapping[str, Any] | None = None,
) -> Models:
    """The `Models` of a server with a single model that is loaded already."""
    served = Served(
        desk,
        {route.path: route for route in routes},
        {query.path: query for query in queries},
        fingerprint,
        card or {},
    )
    return Models([Model(names, watcher=desk.watcher, served=served)])


def _not_loaded(model: Model, reason: str) -> ApiError:
    """The error for a request whose model could not be loaded, or not in time."""
    message = f"The model '{model.names[0]}' is not loaded: {reason}."
    return ApiError(
        message, status=503, kind="server_error", code="model_not_loaded", retry_after=10.0
    )


def _too_large(model: Model, most: int) -> ApiError:
    """The error for a model that would not fit even alone."""
    message = (
        f"The model '{model.names[0]}' takes {model.num_bytes / GIB:.2f} GiB of memory, and this "
        f"server has {most / GIB:.2f} GiB for models: {(model.num_bytes - most) / GIB:.2f} GiB are "
        "missing. Use another model."
    )
    return ApiError(message, param="model", code="model_too_large")


def _no_room(model: Model, most: int, missing: int) -> ApiError:
    """The error for a model that would fit only if busy models were unloaded."""
    message = (
        f"The model '{model.names[0]}' takes {model.num_bytes / GIB:.2f} GiB of the "
        f"{most / GIB:.2f} GiB for models, and others that are busy leave too little: "
        f"{missing / GIB:.2f} GiB are missing. Try again when they have answered."
    )
    return ApiError(
        message, status=503, kind="server_error", code="model_does_not_fit", retry_after=10.0
    )
