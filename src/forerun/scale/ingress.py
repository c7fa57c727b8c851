"""The ingress: a server with OpenAI's routes and no model, in front of a fleet of replicas."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from starlette.applications import Starlette

from forerun.base.clock import now
from forerun.engine.request import Request
from forerun.scale.blame import Blame
from forerun.scale.failover import RemoteAnswer, RemoteEngine, Replicas
from forerun.scale.messages import Work
from forerun.scale.settings import ModelSettings, Scale
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.engine_roles import Pair
from forerun.serve.http.assembly import make_server
from forerun.serve.openai.fingerprint import ModelCard

BLOCK = 8
"""A point in a text is remembered after every this many tokens. An answer shorter than this may
contain no such point."""

MOST_PLACES = 100_000
"""The most points in texts that are remembered (about 20 MB); the least recently used ones are
forgotten."""
PAUSE = 0.2
"""Seconds to wait before work that was lost before it began is sent again."""
AVOIDED = 60.0
"""Seconds for which a lost replica gets no work, if there is another one."""


class Conversations:
    """Remembers which replica stores the beginning of a conversation.

    The next turn of a conversation begins with the last prompt and its answer. So answers are
    remembered, by digests of the text from its start to points inside the answer. A prompt that
    contains the text up to such a point belongs to the conversation. A prompt that shares only the
    system prompt does not, and may go anywhere.
    """

    def __init__(self, most_places: int = MOST_PLACES) -> None:
        self._most_places = most_places
        self._replicas: OrderedDict[bytes, str] = OrderedDict()  # by the digest of a beginning

    def find(self, owner: str, prompt: Sequence[int]) -> str:
        """The replica that generated the longest known beginning of a prompt, or ""."""
        replica = ""
        for _, digest in _digests(owner, prompt):
            if digest in self._replicas:
                self._replicas.move_to_end(digest)
                replica = self._replicas[digest]
        return replica

    def note(self, owner: str, prompt: Sequence[int], answer: Sequence[int], replica: str) -> None:
        """Remember which replica generated an answer, or its last part."""
        for end, digest in _digests(owner, [*prompt, *answer]):
            if end > len(prompt):
                self._replicas[digest] = replica
                self._replicas.move_to_end(digest)
        while len(self._replicas) > self._most_places:
            self._replicas.popitem(last=False)

    def __len__(self) -> int:
        return len(self._replicas)


def _digests(owner: str, tokens: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """The lengths of the beginnings of a text, in whole blocks, each with a digest."""
    digest = blake2b(owner.encode(), digest_size=16)
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        block = tokens[end - BLOCK : end]
        digest.update(b"".join(token.to_bytes(4, "little") for token in block))
        yield end, digest.copy().digest()


class Fleet:
    """Sends each request to a replica, and to another one if that replica is lost.

    tokenizer, model_digest: those of the model, equal on all replicas.
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
        """Whether a replica can probably be reached."""
        return self._is_sound

    @property
    def num_running(self) -> int:
        return sum(answer.is_running for answer in self._answers)

    async def get(self, pair: Pair) -> RemoteEngine:
        """An engine that stands for any replica; which one is decided when a request enters."""
        if not self._is_sound:
            await asyncio.sleep(PAUSE)
        return RemoteEngine(partial(self._start, pair))

    @asynccontextmanager
    async def alone(self, pair: Pair) -> AsyncIterator[RemoteEngine]:
        yield await self.get(pair)

    def replace(self, pair: Pair, dead: RemoteEngine) -> None:
        """Report that a replica was lost; whoever started it starts another one."""
        self.on_loss()

    async def close(self) -> None:
        for answer in list(self._answers):
            answer.abort()

    def _start(self, pair: Pair, engine: RemoteEngine, request: Request) -> RemoteAnswer:
        """Send a request to a replica: the one that stores its beginning, unless that was lost
        recently."""
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
        """The replicas that were lost recently; Ray may not have noticed yet."""
        self._lost = {name: at for name, at in self._lost.items() if now() - at < AVOIDED}
        return tuple(self._lost)


def make_ingress(
    replicas: Replicas, card: ModelCard, settings: ModelSettings, scale: Scale, **options: Any
) -> tuple[Starlette, Desk]:
    """Make the application and its desk. Options are as for `make_server`.

    As many answers are admitted as the largest number of replicas can generate at once, and
    `max_queue` more wait; further requests get status 429.
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
