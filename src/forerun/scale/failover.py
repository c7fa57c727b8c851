"""Exact failover: an answer whose replica dies continues in another one, with the same text.

The ingress keeps the tokens that have arrived. A text is a function of prompt, options, seed and
the tokens so far, so another replica given all of these continues exactly as the first one would
have. Nothing is lost, because tokens that did not arrive are generated again, and nothing is
repeated, because the new replica starts after those that did. A replica that is silent for some
time counts as dead, and a deadline holds whatever a replica does. For the desk a replica is an
engine that may fail, handled like an engine in its own process
(`serve/admission/client_request.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Protocol

from forerun.base.clock import now
from forerun.base.errors import LOG, GenerationError
from forerun.engine.request import Request
from forerun.engine.results import Fate, Generation, Piece, Stats, TokenLogprob
from forerun.engine.text import TextStream
from forerun.scale.messages import Beat, Ending, Message, Refusal, ReplicaLostError, Work, grow
from forerun.serve.admission.errors import ApiError

PATIENCE = 5.0
"""Seconds of silence after which a replica counts as lost: five of its beats."""
GRACE = 1.0
"""Seconds after a deadline in which the replica's own end of the answer may arrive."""


class Replicas(Protocol):
    """Sends work to replicas and receives their messages."""

    def answer(self, work: Work) -> AsyncIterator[Message | Refusal | Beat]:
        """The messages of one answer, from any replica; closing the iterator ends the answer.

        Raises `ReplicaLostError` if the replica is lost before its `Ending` has arrived.
        """
        ...


class RemoteEngine:
    """One answer's engine, which is a replica elsewhere."""

    def __init__(self, start: Callable[..., RemoteAnswer]) -> None:
        self._start = start
        self.failure: Exception | None = None
        self.has_given = False  # any token, or a later sign that the request did not end it
        self.known = 0, 0.0  # what others had lost when it was taken; see `blame`
        self._entered: float | None = None
        self._left: float | None = None

    @property
    def seconds(self) -> float:
        """The number of seconds that the answer has been in the replica."""
        return 0.0 if self._entered is None else (self._left or now()) - self._entered

    def enter(self) -> None:
        self._entered = now()

    def leave(self) -> None:
        self._left = now()

    def enqueue(self, request: Request) -> RemoteAnswer:
        return self._start(self, request)


class RemoteAnswer(AsyncIterator[Piece]):
    """An answer that a replica generates; the counterpart of `Answer` for an engine in this
    process."""

    def __init__(
        self,
        engine: RemoteEngine,
        work: Work,
        messages: AsyncIterator[Message | Refusal | Beat],
        tokenizer: Any,
    ) -> None:
        self.work = work
        self.stats = Stats()
        self.has_entered = False
        self.replica = ""  # who writes it
        self.tokens = [*work.given]  # the output so far
        self._fates = [Fate.GIVEN] * len(self.tokens)
        self._logprobs: list[TokenLogprob] = []
        self._engine = engine
        self._messages = messages
        self._tokenizer = tokenizer
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._end: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._on_entry: Callable[[], None] = lambda: None
        self._num_taken = 0  # messages
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._reading = asyncio.create_task(self._read())
        self._watch = self._loop.call_later(PATIENCE, self._check_silence)
        self._alarm: asyncio.TimerHandle | None = None
        if (seconds := work.options.timeout) is not None:
            self._alarm = self._loop.call_later(seconds, self._ring)

    def __await__(self) -> Generator[Any, None, Generation]:
        return asyncio.shield(self._end).__await__()

    async def __anext__(self) -> Piece:
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)
            self._end.result()  # raises what ended the answer, if anything did
            raise StopAsyncIteration
        return piece

    @property
    def is_running(self) -> bool:
        return self.has_entered and not self._end.done()

    def when_entered(self, listener: Callable[[], None]) -> None:
        self._on_entry = listener

    def when_ended(self, listener: Callable[[], None]) -> None:
        self._end.add_done_callback(lambda _: listener())

    def abort(self) -> bool:
        """End the answer; returns False if it has already ended."""
        return self._cut("aborted")

    def _ring(self) -> None:
        """Called at the deadline: end the answer. A replica that is working on it gets a moment to
        end it itself."""
        if self.has_entered:
            self._alarm = self._loop.call_later(GRACE, self._cut, "deadline")
        else:
            self._cut("deadline")

    def _check_silence(self) -> None:
        """Treat the replica as lost if it has been silent for too long."""
        left = self._heard + PATIENCE - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check_silence)
        elif not self._end.done():
            self._lose(ReplicaLostError(f"It has said nothing for {PATIENCE:g} seconds."))
            self._reading.cancel()

    async def _read(self) -> None:
        """Take messages until the answer ends. Any exception on the way counts as the loss of the
        replica."""
        try:
            async for message in self._messages:
                if self._end.done():
                    return
                self._heard = self._loop.time()
                if not isinstance(message, Beat):
                    self._take(message)
                if self._end.done():
                    return
            raise ReplicaLostError("The messages end before the answer does.")
        except Exception as error:  # of whatever kind: the answer can go on elsewhere
            if not self._end.done():
                self._lose(error)
        finally:
            close = getattr(self._messages, "aclose", None)
            if close is not None:
                await close()

    def _take(self, message: Message | Refusal) -> None:
        """Add a message's pieces and counts. A repeated message is skipped; after a missing one the
        answer must continue in another replica."""
        if isinstance(message, Refusal):
            self._refuse(message)
            return
        if message.number < self._num_taken:
            return  # it came twice
        if message.number > self._num_taken:
            self._engine.has_given = True  # it lives: the network is to blame
            raise ReplicaLostError("A message was lost on its way.")
        self._num_taken += 1
        self.replica = message.replica
        if not self.has_entered:
            self.has_entered = True
            self._engine.enter()
            self._on_entry()
        grow(self.stats, message.growth)
        for piece in message.pieces:
            self._engine.has_given |= bool(piece.tokens)
            self.tokens += piece.tokens
            self._fates += piece.fates
            self._logprobs += piece.logprobs or ()
            self._pieces.put_nowait(piece)
        if isinstance(message, Ending):
            self._conclude(message)

    def _conclude(self, ending: Ending) -> None:
        """End the answer with its last message, as a generation or with the request's own error."""
        reason = ending.pieces[-1].finish_reason
        assert reason is not None
        self.stats.notes, self.stats.compared = list(ending.notes), ending.compared
        answer = self._generation(reason, ending.text, ending.seed)
        if ending.error is None:
            self._finish(answer)
        else:
            answer.error = ending.error
            self._finish(GenerationError(ending.error, answer))

    def _refuse(self, refusal: Refusal) -> None:
        """End the request if no replica could serve it; otherwise count this replica as lost."""
        if refusal.status < 409:
            self._finish(ApiError(refusal.reason, param=refusal.param))
            return
        self.has_entered |= refusal.status == 409  # which counts: there may be no other kind
        raise ReplicaLostError(refusal.reason)

    def _lose(self, error: Exception) -> None:
        """End the answer with a `GenerationError` that carries what has arrived, and mark the
        engine as failed."""
        LOG.warning(
            "A replica was lost; an answer goes on after %d tokens.",
            len(self.tokens),
            exc_info=error,
        )
        self._engine.failure = error
        partial = self._generation("error", None, 0)
        failure = GenerationError(f"The replica was lost: {error}", partial)
        failure.__cause__ = error
        self._finish(failure)

    def _cut(self, reason: str) -> bool:
        """End the answer here. Its last piece releases text that was held back, as an engine's
        would."""
        if self._end.done():
            return False
        text = self._text_so_far()
        parts = [(part, self._fates[token]) for token, part in text.release_parts(final=True)]
        logprobs: list[TokenLogprob] | None = None if self._num_logprobs is None else []
        self._pieces.put_nowait(Piece(parts, [], [], 0, 0, reason, logprobs))
        self._finish(self._generation(reason, text.shown, self._seed))
        self._reading.cancel()
        return True

    def _text_so_far(self) -> TextStream:
        """The text of the tokens so far, in the state in which the replica would have it."""
        options = self.work.options
        text = TextStream(self._tokenizer, options.stop, options.sampling.min_tokens)
        for token in self.tokens:
            text.push(token)
        text.release()
        return text

    def _finish(self, outcome: Generation | Exception) -> None:
        """Set the result or the exception, once, and stop the timers."""
        self._engine.leave()
        if isinstance(outcome, Generation):
            self._end.set_result(outcome)
        else:
            self._end.set_exception(outcome)
            self._end.exception()  # an answer nobody awaits is no unhandled error
        self._pieces.put_nowait(None)
        self._watch.cancel()
        if self._alarm is not None:
            self._alarm.cancel()

    @property
    def _num_logprobs(self) -> int | None:
        return self.work.options.logprobs

    @property
    def _seed(self) -> int:
        return self.work.options.sampling.seed or 0

    def _generation(self, reason: str, text: str | None, seed: int) -> Generation:
        """The answer as far as its messages have arrived."""
        return Generation(
            prompt_tokens=list(self.work.prompt),
            tokens=self.tokens,
            text=text,
            finish_reason=reason,
            seed=seed,
            stats=self.stats,
            fates=self._fates,
            logprobs=None if self._num_logprobs is None else self._logprobs,
        )
